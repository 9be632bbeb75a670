"""Complex-order embeddings against the formula, word by word."""

import cmath

import pytest
import torch

from linear_rope import CausalLM, ModelConfig
from linear_rope.positions import ComplexOrder
from tests.linear_rope.tensors import assert_near, assert_refused, random


@pytest.mark.parametrize("positions", [torch.arange(17), torch.tensor([[0, 1, 2], [5, 100_000, 3]])])
def test_an_embedding_is_amplitude_frequency_and_phase(positions: torch.Tensor) -> None:
    """r·exp(i(ω·m + ϑ)), real parts first. At position 100,000 an angle is off by 1e5 · 1e-16."""
    torch.manual_seed(0)
    words, dim = 11, 6
    module, table = ComplexOrder(words, dim).double(), random(words, dim).requires_grad_()
    tokens = torch.randint(words, (2, positions.shape[-1]), generator=torch.Generator().manual_seed(0))
    found = module.embed(table[tokens], tokens, positions)
    expected, held = torch.empty(*tokens.shape, dim, dtype=torch.float64), table.detach()
    for row, column in torch.cartesian_prod(torch.arange(2), torch.arange(tokens.shape[1])).tolist():
        word = int(tokens[row, column])
        at = int(positions.expand(tokens.shape)[row, column])
        for i in range(dim // 2):
            amplitude, phase = cmath.polar(complex(held[word, i], held[word, i + dim // 2]))
            frequency = 10000 ** (-2 * i / dim) + float(module.frequencies.weight.detach()[word, i])
            wave = amplitude * cmath.exp(1j * (frequency * at + phase))
            expected[row, column, i], expected[row, column, i + dim // 2] = wave.real, wave.imag
    assert_near(found, expected, 1e-10)
    # A rotation leaves the length of a gradient as it is, so no tensor is without one.
    gradients = torch.autograd.grad(found.square().sum() + found.sum(), [table, module.frequencies.weight])
    assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)


def test_the_first_token_is_its_embedding_and_another_dim_is_refused() -> None:
    tokens = torch.tensor([[7, 7]])
    plain, waves = (CausalLM(ModelConfig(dim=16, position=position)) for position in ("none", "complex"))
    at = torch.arange(2)
    assert_near(waves.embedding(tokens, at)[:, 0], plain.embedding(tokens, at)[:, 0], 1e-6)
    assert (waves.embedding(tokens, at)[:, 1] - plain.embedding(tokens, at)[:, 1]).abs().max() > 1e-3
    assert_refused(lambda: CausalLM(ModelConfig(dim=15, heads=5, position="complex")), ["dim is 15", "even"])
