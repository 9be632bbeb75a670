"""Feature maps, positions and kernels by name: built in, an installed package's, one's own, and what is none."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import CausalLM, Encoder, EncoderDecoder, FavorPlus, FeatureMap, LinearRoPEAttention, ModelConfig, YaRN
from linear_rope.attention import ATTENTIONS
from linear_rope.features import FEATURE_MAPS, RANDOM_MAPS, make_feature_map
from linear_rope.positions import POSITIONS, BlockPositions, EmbeddingPositions, InAttention
from tests.linear_rope.tensors import assert_refused, install

SHAPE: dict[str, Any] = {"vocab_size": 11, "dim": 8, "heads": 2}
MAPS: dict[str, Any] = {
    "squared": lambda head_dim, num_features: FavorPlus(head_dim, num_features or 2 * head_dim),
    "draws": lambda head_dim, num_features, *, seed: FavorPlus(head_dim, num_features, seed=seed + 100),
    "not a map": lambda head_dim, num_features: "features",
    "relu": None,
    "broken": None,
}


def test_feature_maps_of_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install(monkeypatch, FEATURE_MAPS, MAPS)
    for name in ("favor+", "favor+hyperbolic", "favor+paired", "elu+1", "elu+1+paired", "relu", "hedgehog", "taylor"):
        assert isinstance(make_feature_map(name, 4), FeatureMap)
    assert asked == []  # built-in maps are found without looking further
    attention = LinearRoPEAttention(8, 2, feature_map="squared", num_features=6, causal=True)
    assert attention.feature_map.num_features == 6
    assert attention(torch.randn(1, 5, 8)).shape == (1, 5, 8)
    assert set(asked) == {"linear_rope.feature_maps"}
    assert make_feature_map("squared", 4).num_features == 8
    assert ModelConfig(feature_map="squared").feature_map == "squared"
    # A function that names the seed is given it, as random maps are.
    assert torch.equal(make_feature_map("draws", 4, seed=3).omega, FavorPlus(4, seed=103).omega)
    assert RANDOM_MAPS == ("favor+", "favor+hyperbolic", "favor+paired")
    for name in RANDOM_MAPS:
        first, again, other = (make_feature_map(name, 4, num_features=6, seed=seed).omega for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    wrong: list[tuple[str, dict[str, int], list[str]]] = [
        ("favor", {}, ["feature_map is 'favor'", "did you mean 'favor+'?", "'elu+1'", "'squared'", "a FeatureMap"]),
        ("broken", {}, ["'broken'", "there is no nowhere"]),
        ("not a map", {}, ["'not a map'", "str", "FeatureMap"]),
        ("squared", {"redraw_every": 5}, ["redraw_every is 5", "leave it out"]),
    ]
    for name, settings, words in wrong:
        assert_refused(lambda name=name, settings=settings: make_feature_map(name, 4, **settings), words)


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


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_positions_of_installed_packages(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rope = InAttention({"rope": "before", "rope_base": 500.0})
    install(monkeypatch, POSITIONS, {"louder": Louder, "constant": Constant, "rope-500": rope, "wrong": int})
    tokens = torch.arange(8)[None]
    plain = CausalLM(ModelConfig(dim=16, layers=2, position="none", attention=attention))
    for position in ("louder", "constant", "rope-500"):
        model = CausalLM(ModelConfig(dim=16, layers=2, position=position, attention=attention, max_length=9))
        assert (model(tokens) - plain(tokens)).abs().max() > 1e-6
        assert model.blocks[0].attention.rope_base == (500.0 if position == "rope-500" else 10000.0)
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


class Mean(nn.Module):
    """The mean of the values so far, with a norm and a gain that begin as they say: what a kernel needs to have."""

    def __init__(self, dim: int, heads: int, *, causal: bool, seed: int) -> None:
        super().__init__()
        self.value, self.norm, self.gain = nn.Linear(dim, dim), nn.RMSNorm(dim), nn.Parameter(torch.full((1,), 2.0))
        self.causal, self.seed = causal, seed

    def forward(self, x: Tensor, context: Tensor | None = None, key_padding_mask: Any = None) -> Tensor:
        v = self.value(x if context is None else context)
        if not self.causal:
            return v.mean(1, keepdim=True).expand_as(x)
        return v.cumsum(1) / torch.arange(1, v.shape[1] + 1).unsqueeze(-1)

    def prefill(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, int]]:
        return self(x), (self.value(x).sum(1, keepdim=True), x.shape[1])

    def step(self, x: Tensor, state: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, int]]:
        total, count = state[0] + self.value(x), state[1] + 1
        return total / count, (total, count)


@pytest.mark.parametrize("position", ["none", "learned", "sinusoidal"])
def test_a_kernel_of_one_s_own_is_named_in_the_configuration(position: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTENTIONS, "mean", Mean)
    config = ModelConfig(**SHAPE, attention="mean", position=position, feature_seed=3)
    tokens, model = torch.randint(11, (2, 7)), CausalLM(config)
    assert model(tokens).shape == (2, 7, 11)
    assert [block.attention.seed for block in model.blocks] == [3000, 3001]
    attention: Any = model.blocks[0].attention
    assert attention.causal
    assert (attention.gain.item(), attention.norm.weight.tolist()) == (2, [1.0] * 8)  # as it made them
    assert attention.value.bias.tolist() == [0.0] * 8
    assert Encoder(config)(tokens).shape == (2, 7, 8)
    assert EncoderDecoder(config)(tokens, tokens[:, :5]).shape == (2, 5, 11)
    expected = tokens[:, :3]
    for _ in range(4):
        expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(model.generate(tokens[:, :3], 4, temperature=0), expected)
    refused: list[tuple[dict[str, Any], list[str]]] = [
        ({"position": "rope-after"}, ["rope is 'after'", "'mean' (Mean)", "takes no rope"]),
        ({"position": "rope-before", "rope_scaling": YaRN(2.0, original_length=8)}, ["rope is 'before'"]),
        ({"position": "alibi"}, ["alibi is True", "takes no alibi"]),
    ]
    for settings, words in refused:
        wrong = ModelConfig(**SHAPE, attention="mean", **settings)
        assert_refused(lambda wrong=wrong: CausalLM(wrong), [*words, "another position"])
