"""Statistics of attention: every measure by its definition, written out query by query, and the warnings."""

import math
import warnings

import pytest
import torch

from linear_rope import EluPlusOne, FavorPlus, LinearRoPEAttention, NTKAware, SoftmaxRoPEAttention, apply_rope
from linear_rope.diagnostics import AttentionCollapseWarning, diagnose, statistics
from linear_rope.features import Features
from tests.linear_rope.tensors import random

pytestmark = pytest.mark.filterwarnings("ignore::linear_rope.diagnostics.AttentionCollapseWarning")


def one_head(width, *, softmax=False, **options):
    """A head whose queries are the first ``width`` channels of x, and whose keys are the others."""
    attention = (SoftmaxRoPEAttention if softmax else LinearRoPEAttention)(2 * width, 1, head_dim=width, **options)
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(2 * width)[:width])
        attention.key.weight.copy_(torch.eye(2 * width)[width:])
    return attention


KINDS = {
    "favor+ after": {},
    "favor+ after, rotated": {"denominator": "rotated"},
    "favor+ after, none": {"denominator": "none"},
    "favor+ before": {"rope": "before"},
    "favor+ after, scaled": {"rope_scaling": NTKAware(4.0)},
    "favor+ none": {"rope": "none"},
    "elu+1 after": {"feature_map": "elu+1"},
    "elu+1 before": {"rope": "before", "feature_map": "elu+1"},
    "softmax": {"softmax": True},
    "softmax none": {"softmax": True, "rope": "none"},
    "softmax alibi": {"softmax": True, "rope": "none", "alibi": True},
}


def make_kind(kind, **options):
    # Without ε the features are the definition's.
    favor = {} if "softmax" in kind else {"feature_map": FavorPlus(4, 6, eps=0)}
    return one_head(4, **favor | KINDS[kind] | options).double()


def assert_close(found, expected, rel=1e-10):
    for name, value in expected.items():
        exact = value is None or isinstance(value, str)
        assert getattr(found, name) == (value if exact else pytest.approx(value, rel=rel, abs=1e-14)), name


def rotated(x, attention):
    return apply_rope(x, torch.arange(len(x)), scaling=attention.rope_scaling)


def by_definition(attention, q, k):
    """Every measure for one head's q (N, D) and k (K, D), query by query, in float64."""
    linear = isinstance(attention, LinearRoPEAttention)
    if attention.rope == "before":
        q, k = rotated(q, attention), rotated(k, attention)
    errors, distances, softmax_distances, denominators, sums, signs = [], [], [], [], [], []
    for i in range(len(q)):
        n = i + 1 if attention.causal else len(k)
        scores = q[i] @ k[:n].T / math.sqrt(q.shape[-1])
        if not linear and attention.alibi:
            scores = scores - (i - torch.arange(n)).abs() / 2**8  # the slope of one head
        exponentials = scores.exp()
        softmax = exponentials / exponentials.sum()
        kernel, weights, denominator = softmax, softmax, exponentials.sum() / exponentials.max()
        if linear:
            query, keys = attention.feature_map(q)[i], attention.feature_map(k)[:n]
            plain = scores = keys @ query
            kernel = plain / plain.sum()
            if attention.rope == "after":
                turned_q, turned_k = (rotated(attention.feature_map(x), attention) for x in (q, k))
                scores = turned_k[:n] @ turned_q[i]
            total = {"unrotated": plain.sum(), "rotated": scores.sum()}.get(attention.denominator, torch.tensor(1.0))
            weights, denominator = scores / total, total / (query.max() * keys.max())
        denominators.append(denominator.item())
        sums.append(weights.sum().item())
        signs += (weights < 0).tolist()
        if n > 1:
            errors.append(math.sqrt(((kernel - softmax) ** 2).sum() / (softmax**2).sum()))
            distances.append(sum(abs(w - 1 / n) for w in kernel.tolist()) / 2)
            softmax_distances.append(sum(abs(w - 1 / n) for w in softmax.tolist()) / 2)
    undivided = linear and attention.denominator == "none"
    return {
        "kernel_error": sum(errors) / len(errors),
        "distance_from_uniform": sum(distances) / len(distances),
        "softmax_distance_from_uniform": sum(softmax_distances) / len(softmax_distances),
        "smallest_denominator": None if undivided else min(denominators, key=abs),
        "nonpositive_denominators": None if undivided else sum(x <= 0 for x in denominators) / len(denominators),
        "negative_share": sum(signs) / len(signs),
        "row_sums": (min(sums), sum(sums) / len(sums), max(sums)),
    }


@pytest.fixture(autouse=True)
def _nothing_warned_yet(monkeypatch):
    monkeypatch.setattr(statistics, "_warned", False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_measures_are_their_definitions(kind, causal):
    attention, x = make_kind(kind, causal=causal), random(1, 9, 8)
    assert_close(diagnose(attention, x), by_definition(attention, x[0, :, :4], x[0, :, 4:]))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "after" not in kind and "before" not in kind])
def test_cross_attention_is_measured(kind):
    # Without RoPE, so that the definition needs no second axis of positions.
    attention = make_kind(kind, rope="none")
    x, context = random(1, 5, 8), random(1, 7, 8, seed=1)
    expected = by_definition(attention, x[0, :, :4], context[0, :, 4:])
    assert_close(diagnose(attention, x, context=context), expected)
    padded = torch.cat((context, torch.full((1, 2, 8), math.nan)), dim=1)
    assert_close(diagnose(attention, x, torch.arange(9)[None] >= 7, context=padded), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_left_out_whatever_it_holds(kind, causal):
    attention, x = make_kind(kind, causal=causal), random(1, 6, 8)
    padded = torch.cat((torch.full((1, 2, 8), math.nan), x, torch.full((1, 1, 8), math.inf)), dim=1)
    mask = torch.tensor([[True, True, *[False] * 6, True]])
    assert_close(diagnose(attention, padded, mask), vars(diagnose(attention, x)))


def test_a_batch_and_heads_are_averaged_over():
    attention = LinearRoPEAttention(8, 2, causal=True).double()
    x = 3 * random(2, 5, 8)
    both, first, second = (diagnose(attention, part) for part in (x, x[:1], x[1:]))
    for name in ("kernel_error", "distance_from_uniform", "negative_share"):
        mean = (getattr(first, name) + getattr(second, name)) / 2
        assert getattr(both, name) == pytest.approx(mean, rel=1e-10)
    largest = max(first.row_sums.largest, second.row_sums.largest)
    assert both.row_sums.largest == pytest.approx(largest, rel=1e-10)


def test_positions_are_those_of_the_call():
    attention, x = make_kind("favor+ after", causal=True), 0.3 * random(1, 6, 8)
    shifted = diagnose(attention, x, positions=torch.arange(6) + 100)
    assert_close(shifted, vars(diagnose(attention, x)), rel=1e-8)
    assert diagnose(attention, x, positions=torch.zeros(6)).row_sums == pytest.approx((1, 1, 1))


def test_denominators_that_are_not_positive_are_counted():
    # Far apart, and with large features, so that rotated products are of either sign.
    x = 2 * random(2, 40, 8)
    unrotated, rotated = (diagnose(make_kind(f"favor+ after{kind}", causal=True), x) for kind in ("", ", rotated"))
    # A query that sees one key, itself, is rotated as that key is: its denominator is positive.
    assert 0 < rotated.nonpositive_denominators < 1
    assert unrotated.nonpositive_denominators == 0
    assert f"denominators ≤ 0       {rotated.nonpositive_denominators:.1%}" in str(rotated).splitlines()


def test_a_query_that_sees_one_key_has_no_distance():
    found = diagnose(make_kind("favor+ after", causal=True), random(1, 1, 8))
    assert (found.kernel_error, found.distance_from_uniform, found.collapse) == (None, None, None)
    assert found.row_sums == pytest.approx((1, 1, 1))


class DrownedFeatures(FavorPlus):
    """One scale for all keys, and an ε beside which most features vanish, as in performer-pytorch."""

    def features(self, x):
        values, log_scale = super().features(x)
        return Features(values * (log_scale - log_scale.max()).exp() + 1e-3, None)


DROWNED = DrownedFeatures(64, 256)


@pytest.mark.parametrize(
    ("feature_map", "scale", "collapse", "says"),
    [(FavorPlus(64, 256), 1, "arbitrary keys", "arbitrary keys"), (DROWNED, 1.5, "uniform", "almost uniform")],
)
def test_collapse_is_warned_of_once(feature_map, scale, collapse, says):
    attention = one_head(64, feature_map=feature_map, causal=True)
    with pytest.warns(AttentionCollapseWarning, match=says) as caught:
        found = diagnose(attention, scale * random(1, 128, 128).float())
    assert caught[0].filename == __file__
    assert found.collapse == collapse
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert diagnose(attention, scale * random(1, 128, 128, seed=1).float()).collapse == collapse


# elu+1 does not estimate softmax, from which it is far.
@pytest.mark.parametrize(("feature_map", "scale"), [(FavorPlus(64, 256), 0.25), (DROWNED, 0.25), (EluPlusOne(), 1)])
def test_small_norms_and_other_kernels_are_not_warned_of(feature_map, scale):
    attention = one_head(64, feature_map=feature_map, causal=True)
    assert diagnose(attention, scale * random(1, 128, 128).float()).collapse is None
