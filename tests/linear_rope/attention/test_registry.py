"""Attention kernels by name: one of one's own inside the models, and what does not go together."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linear_rope import CausalLM, Encoder, EncoderDecoder, ModelConfig, YaRN
from linear_rope.attention import ATTENTIONS
from tests.linear_rope.tensors import assert_refused

SHAPE = {"vocab_size": 11, "dim": 8, "heads": 2}


class Mean(nn.Module):
    """The mean of the values so far: what a kernel needs to have, and nothing else."""

    def __init__(self, dim: int, heads: int, *, causal: bool, seed: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.causal = causal
        self.seed = seed

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


class Gained(Mean):
    """The same with a gain that begins at one."""

    def __init__(self, dim: int, heads: int, *, causal: bool, seed: int) -> None:
        super().__init__(dim, heads, causal=causal, seed=seed)
        self.norm, self.gain = nn.RMSNorm(dim), nn.Parameter(torch.full((1,), 2.0))


def test_vectors_of_a_kernel_begin_as_it_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTENTIONS, "gained", Gained)
    attention: Any = CausalLM(ModelConfig(**SHAPE, attention="gained", position="none")).blocks[0].attention
    assert attention.gain.item() == 2
    assert attention.norm.weight.tolist() == [1.0] * 8
    assert attention.value.bias.tolist() == [0.0] * 8


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTENTIONS, "mean", Mean)


@pytest.mark.parametrize("position", ["none", "learned", "sinusoidal"])
def test_a_kernel_of_one_s_own_is_named_in_the_configuration(position: Any) -> None:
    config = ModelConfig(**SHAPE, attention="mean", position=position, feature_seed=3)
    tokens = torch.randint(11, (2, 7))
    model = CausalLM(config)
    assert model(tokens).shape == (2, 7, 11)
    assert [block.attention.seed for block in model.blocks] == [3000, 3001]
    assert all(block.attention.causal for block in model.blocks)
    assert Encoder(config)(tokens).shape == (2, 7, 8)
    assert EncoderDecoder(config)(tokens, tokens[:, :5]).shape == (2, 5, 11)


def test_a_kernel_that_can_step_generates() -> None:
    torch.manual_seed(0)
    prompt = torch.randint(11, (2, 3))
    model = CausalLM(ModelConfig(**SHAPE, attention="mean", position="learned"))
    expected = prompt
    for _ in range(4):
        expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(model.generate(prompt, 4, temperature=0), expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"position": "rope-after"}, ["rope is 'after'", "'mean' (Mean)", "takes no rope"]),
        ({"position": "rope-before", "rope_scaling": YaRN(2.0, original_length=8)}, ["rope is 'before'"]),
        ({"position": "alibi"}, ["alibi is True", "takes no alibi"]),
    ],
)
def test_positions_that_a_kernel_does_not_take_are_refused(settings: dict[str, Any], words: list[str]) -> None:
    assert_refused(lambda: CausalLM(ModelConfig(**SHAPE, attention="mean", **settings)), [*words, "another position"])
