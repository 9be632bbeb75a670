"""Feature maps: their formulas, and FAVOR+ as an estimator of known variance, of seeded draws."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, LinearRoPEAttention, ReluFeatures, YaRN, apply_rope, linear_attention
from linear_rope.diagnostics.attention_weights import attention_matrices
from linear_rope.features import FEATURE_MAPS, FeatureMap, Hedgehog, Taylor, make_feature_map
from linear_rope.features.taylor import LONGEST
from tests.linear_rope.tensors import (
    FORMS,
    assert_identical,
    assert_near,
    assert_refused,
    outputs_and_gradients,
    random,
    random_qkv,
)

# Draws are seeded, so a statistical test here passes or fails for good. Five standard errors leave a correct
# implementation a chance of about one in two million of failing at the seed that was written down.
STANDARD_ERRORS = 5


def test_maps_without_draws_are_their_formulas() -> None:
    x = random(3, 7) * 3
    torch.testing.assert_close(EluPlusOne()(x), F.elu(x) + 1)
    torch.testing.assert_close(ReluFeatures(eps=1e-3)(x), x.relu() + 1e-3)
    # Precise where elu(x) + 1 would cancel, and never so small that a product of two is not an ordinary number.
    very_negative = torch.tensor([-20.0, -30.0, -40.0, -1e4])
    torch.testing.assert_close(EluPlusOne()(very_negative), very_negative.clamp(min=-30).exp(), atol=0, rtol=1e-6)
    zero = torch.zeros(1, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(EluPlusOne()(zero), zero)[0], torch.ones(1))
    hedgehog, x = Hedgehog(4, eps=0.0).double(), random(5, 4)
    with torch.no_grad():
        hedgehog.weight.copy_(random(4, 4, seed=1))
    projected = x + x @ hedgehog.weight.T
    assert_near(hedgehog(x), torch.cat((projected.exp(), (-projected).exp()), dim=-1))
    for width in (3, 4):
        taylor, q, k = Taylor(width), random(5, width), random(7, width, seed=1)
        score = q @ k.T / math.sqrt(width)
        assert taylor(q).shape == (5, taylor.count(width))
        assert taylor.count(width) % 2 == 0
        assert_near(taylor(q) @ taylor(k).T, 1 + score + score**2 / 2)


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
    mapped = getattr(FavorPlus(8, 16).double(), side)
    x = random(5, 8) * torch.tensor([0.1, 1, 5, 50, 5000.0])[:, None]
    values, log_scale = mapped(x)
    assert log_scale.isfinite().all()
    assert ((values > 0) & (values <= 1 + 1e-5)).all()
    torch.testing.assert_close((values * log_scale.exp())[:3], FavorPlus(8, 16).double()(x[:3]))
    # Those of one vector do not depend on the others.
    for alone, together in zip(mapped(x[1:2]), (values, log_scale), strict=True):
        torch.testing.assert_close(alone, together[1:2])


def test_low_precision_inputs_are_mapped_in_float32() -> None:
    x = random(4, 8).bfloat16()
    for phi in (FavorPlus(8, 16), EluPlusOne(), ReluFeatures()):
        assert phi.keys(x).values.dtype == phi(x).dtype == torch.float32
        torch.testing.assert_close(phi(x).double(), phi(x.double()), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("form", ["plain", "hyperbolic", "paired"])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_favor_plus_is_unbiased(form: str, orthogonal: bool) -> None:
    """The published error of m independent features bounds the error of each of the other forms with m draws."""
    draws = 64 * 1024
    q, k = pair(16, 2.0)
    flags = {} if form == "plain" else {form: True}
    feature_map = FavorPlus(16, 2 * draws if form == "paired" else draws, orthogonal=orthogonal, **flags)
    tolerance = STANDARD_ERRORS * math.sqrt(mean_squared_error(q, k, draws))
    assert tolerance < 0.05 * softmax_kernel(q, k)
    assert abs(float(feature_map(q) @ feature_map(k)) - softmax_kernel(q, k)) < tolerance


def test_independent_features_have_the_published_error() -> None:
    """And with hyperbolic features of the same number M, from M/2 draws, 1 − e^−‖x+y‖² of it (lemma 2)."""
    features, norm = 256 * 1024, 0.5
    q, k = pair(16, norm)
    for hyperbolic, size in ((False, 1), (True, 2)):
        feature_map = FavorPlus(16, features, hyperbolic=hyperbolic, orthogonal=False)
        products = feature_map(q) * feature_map(k) * features
        one_draw = products.view(2, -1).mean(0) if hyperbolic else products
        squared_errors = (one_draw - softmax_kernel(q, k)).square()
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


def test_default_number_of_features_is_the_even_number_next_to_d_ln_d() -> None:
    for dim, features in [(16, 44), (32, 110), (48, 186), (64, 266), (128, 622), (256, 1420)]:
        assert abs(features - dim * math.log(dim)) <= 1
        assert FavorPlus(dim).num_features == features


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


def test_draws_depend_on_seed_and_number_only_and_leave_the_global_generator_alone() -> None:
    def omega(seed: int, draw: int) -> Tensor:
        feature_map = FavorPlus(8, 16, seed=seed)
        feature_map.redraw(draw)
        return feature_map.omega

    first = FavorPlus(8, 16, seed=3).omega
    torch.manual_seed(2)
    assert_identical([omega(3, 0), FavorPlus(8, 16, seed=3).omega], [first, first])
    draws = [omega(seed, draw) for seed in range(4) for draw in range(4)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])
    # So two variants get the same initial projections, whether or not one of them draws features.
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


def taylor_definition(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, **_: Any) -> Tensor:
    score = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    weights = 1 + score + score.square() / 2
    weights = weights.tril() if causal else weights
    return weights @ v.double() / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("causal", [True, False])
def test_taylor_features_of_long_vectors_have_the_definition_s_outputs_and_gradients(causal: bool) -> None:
    """Queries and keys in float32 whose products are about 1."""
    half, width, length = 8, 16, 70
    for norm in (100.0, LONGEST * width**0.25 * (1 - 1e-3)):
        q, k, v = (random(1, 2, length, width, seed=seed) for seed in range(3))
        q[..., half:], k[..., :half] = 0, 0
        q, k = (norm * x / x.norm(dim=-1, keepdim=True) for x in (q, k))
        q[..., half:] = random(1, 2, length, width - half, seed=3) * math.sqrt(width) / norm
        qkv = [x.float() for x in (q, k, v)]
        options: dict[str, Any] = dict(feature_map=Taylor(width), causal=causal, rope="none")
        expected = outputs_and_gradients(qkv, taylor_definition, **options)
        for form in FORMS:
            assert_near(outputs_and_gradients(qkv, implementation=form, **options), expected, 1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_longer_vectors_than_taylor_features_hold_are_refused(causal: bool) -> None:
    for form in ("auto", *FORMS):
        for part in (0, 1):
            qkv = [torch.ones(1, 1, 3, 16) for _ in range(3)]
            qkv[part] = qkv[part] * LONGEST
            options: dict[str, Any] = dict(feature_map=Taylor(16), causal=causal, implementation=form)
            words = ["Taylor", "norm 1600", "norm 800", "qk_norm"]
            assert_refused(lambda qkv=qkv, options=options: linear_attention(*qkv, **options), words)
    # Not where padding is long, which has no influence.
    mask = torch.tensor([[False, False, True]])
    long = torch.ones(1, 1, 3, 16).masked_fill(mask[:, None, :, None], 1e6)
    options = dict(feature_map=Taylor(16), rope="none", key_padding_mask=mask)
    assert_near(linear_attention(torch.ones_like(long), long, long, **options), torch.ones_like(long), 1e-6)
    # What is too long is no number where nobody waits for it.
    x = torch.ones(2, 3, 16)
    x[0, 1] = 1e3
    values = torch.func.vmap(Taylor(16))(x)
    assert values[0, 1].isnan().all()
    assert values[:, [0, 2]].isfinite().all()


# The scale that a model gives to its scores: maps of scores take it, others take no notice.
YARN = YaRN(8.0, original_length=4)
OF_SCORES = {"taylor", "favor+", "favor+hyperbolic", "favor+paired"}


def weights_of(name: str, feature_map: FeatureMap, q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The weights of the definition, in float64, before they are divided by their sum."""
    q, k = q.double(), k.double()
    if name == "taylor":
        score = scale * q @ k.mT / math.sqrt(q.shape[-1])
        return 1 + score + score.square() / 2
    root = math.sqrt(scale) if name in OF_SCORES else 1.0
    return feature_map(root * q) @ feature_map(root * k).mT


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_yarn_s_temperature_is_for_maps_of_scores(name: str) -> None:
    feature_map, (q, k, v) = make_feature_map(name, 4).double(), random_qkv(2, 2, 9, width=4)
    turned = (apply_rope(x, torch.arange(9), scaling=YARN) for x in (q, k))
    weights = weights_of(name, feature_map, *turned, YARN.magnitude**2)
    expected = weights / weights.sum(-1, keepdim=True) @ v
    for form in FORMS:
        options: dict[str, Any] = dict(feature_map=feature_map, implementation=form, rope="before")
        assert_near(linear_attention(q, k, v, **options, rope_scaling=YARN), expected, 1e-5)  # FAVOR+'s ε is 1e-6
    # After the map there is no score to scale.
    of_q, of_k, at = feature_map(q), feature_map(k), torch.arange(9)
    above = apply_rope(of_q, at, scaling=YARN) @ apply_rope(of_k, at, scaling=YARN).mT
    expected = above @ v / (of_q @ of_k.mT).sum(-1, keepdim=True)
    assert_near(linear_attention(q, k, v, feature_map=feature_map, rope_scaling=YARN), expected)
    # Diagnostics have the same scale.
    torch.manual_seed(0)
    module = LinearRoPEAttention(8, 2, feature_map=name, rope="before", rope_scaling=YARN).double()
    found = attention_matrices(module, random(2, 9, 8))
    assert_near([found.weights, found.kernel], [module.attention_weights(random(2, 9, 8)), found.weights])
