"""FLOATER: the steps of its equation, beyond any length, and a clear word where its solver is not installed."""

import pytest
import torch
from torch import Tensor

from linear_rope import CausalLM, EncoderDecoder, ModelConfig
from linear_rope.positions import Floater, floater
from tests.linear_rope.tensors import assert_identical, assert_near, assert_refused, random

pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed")
DIM, LAYERS = 6, 3


def make() -> Floater:
    module = Floater(DIM, LAYERS, initial_std=0.5).double()
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed))
    return module


def change(module: Floater, time: float, p: Tensor) -> Tensor:
    """h(τ, p) = W₂ tanh(W₁ p + w τ + b₁) + b₂."""
    matrix, of_time = module.inner.weight[:, :DIM], module.inner.weight[:, DIM]
    hidden = torch.tanh(p @ matrix.mT + of_time * time + module.inner.bias)
    return hidden @ module.outer.weight.mT + module.outer.bias


def stepped(module: Floater, steps: int, size: float) -> list[Tensor]:
    """p at the times 0, size, 2·size, ... by Kutta's 3/8 rule, in units of the standard deviation 0.5."""
    states = [module.start / 0.5]
    for number in range(steps):
        time, p = number * size, states[-1]
        a = change(module, time, p)
        b = change(module, time + size / 3, p + size * a / 3)
        c = change(module, time + size * 2 / 3, p + size * (b - a / 3))
        d = change(module, time + size, p + size * (a - b + c))
        states.append(p + size * (a + 3 * b + 3 * c + d) / 8)
    return states


def test_every_tenth_position_is_a_step_of_the_equation_and_the_others_lie_on_a_cubic() -> None:
    module, positions = make(), torch.arange(41)
    found, states = module(positions) / 0.5, stepped(module, 4, 1.0)
    assert found.shape == (LAYERS, 41, DIM)
    expected = torch.empty_like(found)
    for step in range(4):
        first, last = states[step], states[step + 1]
        slopes = change(module, step, first), change(module, step + 1, last)
        for place in range(11):
            s = place / 10
            expected[:, 10 * step + place] = (
                (1 + 2 * s) * (1 - s) ** 2 * first
                + s * (1 - s) ** 2 * slopes[0]
                + s**2 * (3 - 2 * s) * last
                + s**2 * (s - 1) * slopes[1]
            )
    assert_near(found, expected)
    upstream, learned = random(*found.shape, seed=99), list(module.parameters())
    assert_near(*(torch.autograd.grad(each, learned, upstream) for each in (found, expected)))


def test_what_a_position_gets_does_not_depend_on_how_many_follow() -> None:
    module = make()
    long = module(torch.arange(1000))
    assert long.isfinite().all()
    for length in (1, 10, 11, 500):
        assert_identical(module(torch.arange(length)), long[:, :length])
    padded = torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]])
    assert_identical(module(padded), long[:, padded])
    assert module(torch.zeros(0, 3, dtype=torch.int64)).shape == (LAYERS, 0, 3, DIM)


def test_a_model_adds_it_to_the_input_of_every_block() -> None:
    model = CausalLM(ModelConfig(dim=16, layers=2, position="floater", attention="softmax")).eval()
    seen: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        block.register_forward_hook(lambda _, inputs, output: seen.append(output))
    tokens = torch.arange(40)[None]
    model(tokens)
    added = model.block_positions(torch.arange(40))
    assert_near(seen[0], model.embedding.tokens(tokens) + added[0], 1e-6)
    assert_near(seen[2], seen[1] + added[1], 1e-6)
    both = EncoderDecoder(ModelConfig(dim=16, layers=1, position="floater"))
    assert both.encoder.block_positions is not both.block_positions


def test_without_its_solver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floater, "find_spec", lambda name: None)
    words = ["position is floater", "torchdiffeq", 'pip install "linear-rope[floater]"']
    assert_refused(lambda: CausalLM(ModelConfig(position="floater")), words)
