"""A token that keeps nothing (ln a = −∞, or as masks have it) begins a sequence of its own, in every kernel, also token
by token."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from linear_rope.positions import Decay
from tests.linear_rope.attention import modules
from tests.linear_rope.attention.modules import DIM, KERNELS
from tests.linear_rope.tensors import HEADS, assert_near, in_steps, random, some_padding

LENGTH = 80
BOTH_WAYS = ("softmax", "favor+", "elu+1")
STARTS = (0, 20, 21, 66, LENGTH)


LITTLE = pytest.mark.parametrize("log_kept", [-math.inf, torch.finfo(torch.float32).min])


class Boundaries(Decay):
    """Keeps next to nothing at tokens whose first number is large."""

    def __init__(self, heads: int, log_kept: float) -> None:
        super().__init__(heads)
        self.log_kept = log_kept

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[..., 0] > 10, self.log_kept, x.new_tensor(-0.1)).unsqueeze(1).expand(-1, self.heads, -1)


def made(name: str, log_kept: float = -math.inf, *, causal: bool = True) -> torch.nn.Module:
    # FAVOR+ of rotated keys depends on where they are, not on distances alone.
    options = {"rope": "none"} if name == "favor+window" else {}
    module: torch.nn.Module = modules.made(name, causal=causal, decay=Boundaries(HEADS, log_kept), **options)
    return module


def packed() -> Tensor:
    x = random(2, LENGTH, DIM).clamp(max=3)
    x[:, STARTS[1:-1], 0] = 20.0
    return x


def apart(module: torch.nn.Module, x: Tensor) -> Tensor:
    return torch.cat([module(x[:, start:end]) for start, end in itertools.pairwise(STARTS)], dim=1)


@pytest.mark.parametrize("name", KERNELS)
@LITTLE
def test_what_comes_before_has_no_influence(name: str, log_kept: float) -> None:
    module = made(name, log_kept)
    x = packed()
    expected = apart(made(name), x)
    assert_near(module(x), expected)
    for prompt in (1, 20, 65):
        assert_near(in_steps(module, x, prompt), expected)


@pytest.mark.parametrize("name", BOTH_WAYS)
@LITTLE
def test_nor_what_comes_after_where_attention_looks_both_ways(name: str, log_kept: float) -> None:
    module, x = made(name, log_kept, causal=False), packed()
    assert_near(module(x), apart(made(name, causal=False), x))


@pytest.mark.parametrize("name", BOTH_WAYS)
@LITTLE
def test_padding_behind_a_boundary_sees_nothing(name: str, log_kept: float) -> None:
    module, x = made(name, log_kept, causal=False), packed()
    start = STARTS[1]
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[:, :start] = True
    y = module(x, key_padding_mask=padding)
    assert_near(y[:, start:], made(name, causal=False)(x[:, start:]))
    gradients = torch.autograd.grad(y.sum(), [*module.parameters()], allow_unused=True)
    assert all(each.isfinite().all() for each in (y, *gradients) if each is not None)


@pytest.mark.parametrize("name", KERNELS)
def test_a_padded_prompt_is_forgotten_too(name: str) -> None:
    module = made(name)
    x = packed()
    padding = some_padding(2, 66)
    y, state = module.prefill(x[:, :66], key_padding_mask=padding)
    assert y.isfinite().all()
    stepped, _ = module.step(x[:, 66:67], state)
    assert_near(stepped, module(x[:, 66:67]))
