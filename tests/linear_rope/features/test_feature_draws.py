"""The random draws of FAVOR+: their distribution, their seeds, and redraws in training."""

import copy
import math

import pytest
import torch
from torch import Tensor

from linear_rope import FavorPlus, LinearRoPEAttention
from tests.linear_rope.tensors import assert_identical, random

STANDARD_ERRORS = 5  # as in test_features.py


def test_orthogonal_rows_are_orthogonal_with_gaussian_norms() -> None:
    dim, blocks = 16, 256
    omega = FavorPlus(dim, dim * blocks + 5).omega.double()
    assert omega.shape == (dim * blocks + 5, dim)
    squared = omega.square().sum(-1)
    whole = omega[: dim * blocks].view(blocks, dim, dim)
    products = whole @ whole.mT
    torch.testing.assert_close(products, torch.diag_embed(products.diagonal(dim1=1, dim2=2)), rtol=0, atol=1e-4)
    # Squared norms of Gaussian rows: chi-squared with D degrees of freedom, mean D and variance 2D.
    assert abs(float(squared.mean()) - dim) < STANDARD_ERRORS * math.sqrt(2 * dim / len(squared))
    assert 0.9 * 2 * dim < float(squared.var()) < 1.1 * 2 * dim
    independent = FavorPlus(dim, dim, orthogonal=False).omega
    assert (independent @ independent.T).fill_diagonal_(0).abs().max() > 1
    # No direction is preferred: entries have mean 0 and variance 1, within five standard errors.
    assert abs(float(omega.mean())) < STANDARD_ERRORS / math.sqrt(omega.numel())
    assert abs(float(whole[:, 0].square().mean()) - 1) < STANDARD_ERRORS * math.sqrt(2 / (blocks * dim))


def test_draws_depend_on_seed_and_number_only() -> None:
    def omega(seed: int, draw: int) -> Tensor:
        feature_map = FavorPlus(8, 16, seed=seed)
        feature_map.redraw(draw)
        return feature_map.omega

    first = FavorPlus(8, 16, seed=3).omega
    torch.manual_seed(2)
    assert_identical([omega(3, 0), FavorPlus(8, 16, seed=3).omega], [first, first])
    draws = [omega(seed, draw) for seed in range(4) for draw in range(4)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_draws_leave_the_global_generator_alone() -> None:
    """So two variants get the same initial projections, whether or not one of them draws features."""
    weights = []
    for options in ({"redraw_every": 1}, {"feature_map": "elu+1"}):
        torch.manual_seed(0)
        module = LinearRoPEAttention(16, 2, **options)
        module(torch.zeros(1, 5, 16))
        weights.append((module.out.weight, torch.random.get_rng_state()))
    assert_identical(*weights)


def omegas(feature_map: FavorPlus, calls: int) -> list[Tensor]:
    seen = []
    for _ in range(calls):
        feature_map.maybe_redraw()
        seen.append(feature_map.omega.clone())
    return seen


def test_redraws_every_so_many_training_calls_and_evaluation_neither_redraws_nor_counts() -> None:
    feature_map, other = FavorPlus(8, 16, redraw_every=3, seed=1), FavorPlus(8, 16, seed=1)
    seen = omegas(feature_map, 2)
    feature_map.eval()
    assert_identical(omegas(feature_map, 10), [seen[-1]] * 10)
    feature_map.train()
    seen += omegas(feature_map, 7)
    for step in range(9):
        other.redraw(step // 3)
        assert_identical(seen[step], other.omega)
    assert_identical(omegas(other, 9), [other.omega] * 9)


@pytest.mark.parametrize("saved_after", [1, 3, 4])
def test_training_redraws_and_a_checkpoint_resumes_the_sequence(saved_after: int) -> None:
    torch.manual_seed(0)
    module, other = (LinearRoPEAttention(16, 2, causal=True, redraw_every=2) for _ in range(2))
    x = random(1, 5, 16).float()
    outputs = [module(x) for _ in range(saved_after)]
    assert len({float(y.detach().sum()) for y in outputs}) == (saved_after + 1) // 2
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    # A redraw in inference mode must not break the training that follows.
    for mode in (torch.inference_mode, torch.enable_grad, torch.enable_grad):
        with mode():
            y, same = module(x), other(x)
            assert_identical(same, y)
            if mode is torch.enable_grad:
                y.sum().backward()
