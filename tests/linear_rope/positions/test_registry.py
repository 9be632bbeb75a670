"""Position encodings by name: built in, an installed package's, and what is none."""

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, ModelConfig
from linear_rope.positions import POSITIONS, BlockPositions, EmbeddingPositions, InAttention
from tests.linear_rope.tensors import assert_refused, install


class Louder(EmbeddingPositions):
    """Later tokens are louder."""

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.dim, self.max_length = dim, max_length

    def embed(self, x: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
        return x * (1 + positions.unsqueeze(-1) / self.max_length)


class Constant(BlockPositions):
    """The same in every block."""

    def __init__(self, dim: int, layers: int) -> None:
        super().__init__()
        self.dim, self.layers = dim, layers

    def forward(self, positions: Tensor) -> Tensor:
        return (positions.unsqueeze(-1) * torch.arange(self.dim) / 100).expand(self.layers, -1, -1)


ROPE_OF_ONE_S_OWN = InAttention({"rope": "before", "rope_base": 500.0})


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package had them."""
    found = {"louder": Louder, "constant": Constant, "rope-500": ROPE_OF_ONE_S_OWN, "wrong": int}
    install(monkeypatch, POSITIONS, found)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("position", ["louder", "constant", "rope-500"])
@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_a_package_s_encoding_is_named_in_the_configuration(position: str, attention: str) -> None:
    model = CausalLM(ModelConfig(dim=16, layers=2, position=position, attention=attention, max_length=9))
    plain = CausalLM(ModelConfig(dim=16, layers=2, position="none", attention=attention))
    tokens = torch.arange(8)[None]
    assert (model(tokens) - plain(tokens)).abs().max() > 1e-6
    assert model.blocks[0].attention.rope_base == (500.0 if position == "rope-500" else 10000.0)


@pytest.mark.usefixtures("installed")
def test_what_is_no_encoding_is_refused_and_a_wrong_name_lists_all() -> None:
    assert_refused(lambda: ModelConfig(position="wrong"), ["position is 'wrong'", "int", "give an InAttention"])
    assert_refused(lambda: ModelConfig(position="loud"), ["did you mean 'louder'", "'shaw'", "'rope-before'"])
    with pytest.raises(ValueError, match="rope_scaling"):
        ModelConfig(position="louder", rope_scaling=2.0)  # type: ignore[arg-type]


def test_names_of_before_stand_for_what_they_did() -> None:
    before = "none learned sinusoidal alibi rope-before rope-after selective-before selective-after"
    assert list(POSITIONS)[:8] == before.split()
    alibi = POSITIONS["alibi"]
    assert isinstance(alibi, InAttention)
    assert alibi.of({"alibi": 0, "decay": 0}) == {"alibi": True}
    assert alibi.of({"decay": 0}) == {"decay": "alibi"}
    assert alibi.of({}) == {"alibi": True}  # and the attention refuses it
