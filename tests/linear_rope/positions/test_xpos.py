"""xPos: against its formula pair by pair, far apart, token by token, and what is refused."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, Encoder, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention, linear_attention
from linear_rope.attention import GatedDelta, Retention, WindowedFavor
from linear_rope.features import EluPlusOne
from tests.linear_rope.tensors import assert_near, assert_refused, random, random_qkv

DIM, HEADS, D = 16, 2, 8


def make(**options: Any) -> SoftmaxRoPEAttention:
    torch.manual_seed(0)
    return SoftmaxRoPEAttention(DIM, HEADS, rope="xpos", causal=True, **options).double()


def looped(module: SoftmaxRoPEAttention, x: Tensor, at: list[int], base: float = 10000.0) -> Tensor:
    """Pair i is rotated by (m − n) θ_i and decays by ζ_i^((m − n)/512), ζ_i = (2i/d + 0.4)/1.4."""
    q, k, v = (p(x).unflatten(-1, (HEADS, D)) for p in (module.query, module.key, module.value))
    outputs = []
    for i in range(x.shape[1]):
        scores = []
        for j in range(i + 1):
            score, apart = torch.zeros(x.shape[0], HEADS, dtype=x.dtype), at[i] - at[j]
            for pair in range(D // 2):
                (a, b), (c, d) = (y[..., 2 * pair : 2 * pair + 2].unbind(-1) for y in (q[:, i], k[:, j]))
                angle, decay = apart * base ** (-2 * pair / D), ((2 * pair / D + 0.4) / 1.4) ** (apart / 512)
                score = score + decay * ((a * c + b * d) * math.cos(angle) + (a * d - b * c) * math.sin(angle))
            scores.append(score / math.sqrt(D))
        weights = torch.stack(scores, dim=-1).softmax(-1)
        outputs.append(torch.einsum("bhk,bkhd->bhd", weights, v[:, : i + 1]).flatten(1))
    return module.out(torch.stack(outputs, dim=1))


@pytest.mark.parametrize("length", [1, 17, 40])
def test_attention_is_the_formula(length: int) -> None:
    module, x = make(rope_base=100.0), random(2, length, DIM).requires_grad_()
    y, expected = module(x), looped(module, x, list(range(length)), 100.0)
    assert_near(y, expected)
    upstream, learned = random(*y.shape, seed=99), [x, *module.parameters()]
    found = [torch.autograd.grad(each, learned, upstream) for each in (y, expected)]
    assert_near(*(torch.cat([gradient.flatten() for gradient in each]) for each in found))


def test_positions_of_20_000_are_finite_and_right() -> None:
    """In float32 an angle is rounded to 6e-8 of a turn, and ζ^(c/512) cancels to a few units in the last place."""
    module, x = make(), random(1, 41, DIM)
    at = list(range(0, 20_001, 500))
    expected = looped(module, x, at)
    assert_near(module(x, positions=torch.tensor(at)), expected, 1e-9)
    single, y = module.float(), x.float().requires_grad_()
    output = single(y, positions=torch.tensor(at))
    assert_near(output.double(), expected, 1e-5)
    assert torch.autograd.grad(output.sum(), y)[0].isfinite().all()
    assert make().bfloat16()(x.bfloat16(), positions=torch.tensor(at)).isfinite().all()


def test_far_from_the_beginning_it_is_the_same() -> None:
    """Positions count by their differences."""
    module, x, at = make(), random(2, 30, DIM), torch.arange(30)
    assert_near(module(x, positions=at + 100_000), module(x, positions=at), 1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda: LinearRoPEAttention(DIM, HEADS, rope="xpos"),  # type: ignore[arg-type]
        lambda: Retention(DIM, HEADS, rope="xpos"),  # type: ignore[arg-type]
        lambda: GatedDelta(DIM, HEADS, rope="xpos"),  # type: ignore[arg-type]
        lambda: WindowedFavor(DIM, HEADS, rope="xpos"),  # type: ignore[arg-type]
        lambda: linear_attention(*random_qkv(1, 2, 3), feature_map=EluPlusOne(), rope="xpos"),  # type: ignore[arg-type]
        lambda: CausalLM(ModelConfig(position="xpos")),
    ],
)
def test_linear_attention_names_its_scalar_decay(call: Any) -> None:
    assert_refused(call, ["rope is 'xpos'", "one decay a head", 'decay="retnet"'])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"causal": False}, ['rope is "xpos"', "later keys", "causal=True"]),
        ({"head_dim": 5}, ["head_dim is 5", "even"]),
        ({"rope_angles": "selective"}, ["rope_angles is 'selective'", "xpos"]),
        ({"alibi": True}, ["alibi"]),
        ({"score_positions": "t5"}, ["score_positions is 't5'", "rope='xpos'"]),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], words: list[str]) -> None:
    assert_refused(lambda: SoftmaxRoPEAttention(DIM, HEADS, **{"rope": "xpos", "causal": True} | options), words)


def test_an_encoder_cannot_have_it() -> None:
    assert_refused(lambda: Encoder(ModelConfig(attention="softmax", position="xpos")), ['rope is "xpos"', "causal"])
