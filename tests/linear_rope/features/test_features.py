"""Feature maps: their formulas, and FAVOR+ as an estimator of known variance."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, ReluFeatures, apply_rope
from tests.linear_rope.tensors import random

# Draws are seeded, so a statistical test here passes or fails for good. Five standard errors leave a correct
# implementation a chance of about one in two million of failing at the seed that was written down.
STANDARD_ERRORS = 5


def pair(dim: int, squared_norm: float) -> tuple[Tensor, Tensor]:
    """A query and a key whose x' + y' (x' = x / D^¼) has the given squared norm."""
    q, k = random(dim), random(dim, seed=1)
    scale = math.sqrt(squared_norm * math.sqrt(dim)) / (q + k).norm()
    return q * scale, k * scale


def softmax_kernel(q: Tensor, k: Tensor) -> float:
    return math.exp(float(q @ k) / math.sqrt(len(q)))


def mean_squared_error(q: Tensor, k: Tensor, features: int) -> float:
    """Choromanski et al. 2020, lemma 2: e^‖x+y‖² SM² (1 − e^−‖x+y‖²) / m."""
    norm = float((q + k).square().sum()) / math.sqrt(len(q))
    return math.exp(norm) * softmax_kernel(q, k) ** 2 * (1 - math.exp(-norm)) / features


def test_elu_plus_one_and_relu_are_their_formulas() -> None:
    x = random(3, 7) * 3
    torch.testing.assert_close(EluPlusOne()(x), F.elu(x) + 1)
    torch.testing.assert_close(ReluFeatures(eps=1e-3)(x), x.relu() + 1e-3)
    # Precise where elu(x) + 1 would cancel, and never so small that a product of two is not an ordinary number.
    very_negative = torch.tensor([-20.0, -30.0, -40.0, -1e4])
    torch.testing.assert_close(EluPlusOne()(very_negative), very_negative.clamp(min=-30).exp(), atol=0, rtol=1e-6)
    zero = torch.zeros(1, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(EluPlusOne()(zero), zero)[0], torch.ones(1))


@pytest.mark.parametrize("hyperbolic", [False, True])
def test_favor_plus_is_its_formula(hyperbolic: bool) -> None:
    feature_map = FavorPlus(6, 10, hyperbolic=hyperbolic, eps=0.0).double()
    x = random(2, 3, 6) * 2
    scaled = x / 6**0.25
    projected = torch.einsum("...d,md->...m", scaled, feature_map.omega)
    if hyperbolic:
        projected = torch.cat((projected, -projected), dim=-1)
    expected = (projected - scaled.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(10)
    torch.testing.assert_close(feature_map(x), expected, rtol=1e-12, atol=0)


def test_paired_features_are_each_feature_twice() -> None:
    x = random(2, 3, 6) * 2
    plain, paired = FavorPlus(6, 10, seed=3).double(), FavorPlus(6, 20, paired=True, seed=3).double()
    assert paired.omega.shape == (10, 6)
    twice = plain(x).repeat_interleave(2, dim=-1)
    torch.testing.assert_close(paired(x), twice / math.sqrt(2), rtol=1e-12, atol=0)
    torch.testing.assert_close(EluPlusOne(paired=True)(x), EluPlusOne()(x).repeat_interleave(2, dim=-1))
    assert (EluPlusOne(6, paired=True).num_features, EluPlusOne(paired=True).count(6)) == (12, 12)


@pytest.mark.parametrize("side", ["queries", "keys"])
def test_scaled_features_are_the_features_and_bounded(side: str) -> None:
    feature_map = FavorPlus(8, 16).double()
    x = random(5, 8) * torch.tensor([0.1, 1, 5, 50, 5000.0])[:, None]
    values, log_scale = getattr(feature_map, side)(x)
    assert values.isfinite().all()
    assert log_scale.isfinite().all()
    assert (values > 0).all()
    assert (values <= 1 + 1e-5).all()
    torch.testing.assert_close((values * log_scale.exp())[:3], feature_map(x[:3]))
    # Those of one vector do not depend on the others.
    for alone, together in zip(getattr(feature_map, side)(x[1:2]), (values, log_scale), strict=True):
        torch.testing.assert_close(alone, together[1:2])


def test_low_precision_inputs_are_mapped_in_float32() -> None:
    x = random(4, 8).bfloat16()
    for phi in (FavorPlus(8, 16), EluPlusOne(), ReluFeatures()):
        assert phi.keys(x).values.dtype == phi(x).dtype == torch.float32
        torch.testing.assert_close(phi(x).double(), phi(x.double()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["plain", "hyperbolic", "paired"])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_favor_plus_is_unbiased(form: str, orthogonal: bool) -> None:
    """The published error of m independent features bounds the error of each of the other forms with m draws."""
    draws = 64 * 1024
    q, k = pair(16, 2.0)
    flags = {} if form == "plain" else {form: True}
    feature_map = FavorPlus(16, 2 * draws if form == "paired" else draws, orthogonal=orthogonal, **flags)
    estimate = float(feature_map(q) @ feature_map(k))
    tolerance = STANDARD_ERRORS * math.sqrt(mean_squared_error(q, k, draws))
    assert tolerance < 0.05 * softmax_kernel(q, k)
    assert abs(estimate - softmax_kernel(q, k)) < tolerance


def test_independent_features_have_the_published_error() -> None:
    """And with hyperbolic features of the same number M, from M/2 draws, 1 − e^−‖x+y‖² of it (lemma 2)."""
    features, norm = 256 * 1024, 0.5
    q, k = pair(16, norm)
    exact = softmax_kernel(q, k)
    for hyperbolic, size in ((False, 1), (True, 2)):
        feature_map = FavorPlus(16, features, hyperbolic=hyperbolic, orthogonal=False)
        products = feature_map(q) * feature_map(k) * features
        one_draw = products.view(2, -1).mean(0) if hyperbolic else products
        squared_errors = (one_draw - exact).square()
        expected = mean_squared_error(q, k, size) * (1 - math.exp(-norm) if hyperbolic else 1)
        standard_error = float(squared_errors.std()) / math.sqrt(len(squared_errors))
        assert standard_error < 0.03 * expected
        assert abs(float(squared_errors.mean()) - expected) < STANDARD_ERRORS * standard_error


def test_expected_score_of_eq_19_is_the_kernel_times_a_mask_over_distance() -> None:
    """E[(R_m φ(q))ᵀ R_n φ(k)] = exp(qᵀk/√D)·c(m − n), c(Δ) = (2/M) Σ cos(Δθ_i)."""
    dim, features, draws = 8, 64, 300
    q, k = pair(dim, 1.0)
    distances = torch.tensor([0, 1, 4, 16, 64, 256])
    theta = 10000.0 ** (-2 * torch.arange(features // 2, dtype=torch.float64) / features)
    mask = 2 / features * (distances[:, None] * theta).cos().sum(-1)
    maps = [FavorPlus(dim, features, seed=seed) for seed in range(draws)]
    scores = [apply_rope(phi(k).expand(len(distances), -1), distances) @ phi(q) for phi in maps]
    relative = torch.stack(scores) / softmax_kernel(q, k)
    standard_error = relative.std(0) / math.sqrt(draws)
    assert standard_error.max() < 0.02
    assert mask[0] == 1
    assert mask[-1] < 0.4
    assert ((relative.mean(0) - mask).abs() < STANDARD_ERRORS * standard_error).all()


@pytest.mark.parametrize(("dim", "features"), [(16, 44), (32, 110), (48, 186), (64, 266), (128, 622), (256, 1420)])
def test_default_number_of_features_is_the_even_number_next_to_d_ln_d(dim: int, features: int) -> None:
    assert abs(features - dim * math.log(dim)) <= 1
    assert FavorPlus(dim).num_features == features
