"""linear_attention: the reference against the definition, and every implementation against the reference.

How the tolerances come about. An output is a quotient of sums of at most N·M products. In float64 a product is rounded
by 1e-16; even added up over N·M = 2000 terms and divided by a sum of signed weights that nearly cancels, 1e-10 of the
largest value leaves a factor of a thousand. In float32 (6e-8) errors of random sign grow with the root of the number
of terms, to about 3e-6, so 1e-5. bfloat16 inputs are computed with in float32, and only outputs and gradients are
rounded (4e-3), so 2e-2. Gradients of q, k and v are compared on one scale, the largest of the three: for a sequence of
one token the first two are zero but for rounding.

With denominator="rotated" a row's signed weights can cancel, and then the quotient magnifies rounding without bound:
that is the option's own doing. Its forms are compared at positions in [0, 0.1), where nothing cancels.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, ReluFeatures
from linear_rope.features import Features, GivenFeatures, Hedgehog, Taylor
from linear_rope.positions.rotary import rope_frequencies
from tests.linear_rope.tensors import (
    FAST,
    FORMS,
    HEADS,
    KINDS,
    MAPS,
    SETTINGS,
    TOLERANCES,
    D,
    M,
    assert_identical,
    assert_near,
    assert_refused,
    attended,
    outputs_and_gradients,
    partly_turned,
    random,
    random_qkv,
    slow_positions,
    some_decay,
    some_padding,
    some_pair_decay,
)

CAUSAL = pytest.mark.parametrize("causal", [True, False])
IN_BLOCKS = [form for form in FAST if form != "recurrent"]
TWO = {"favor+": FavorPlus(D, M).double(), "elu+1": EluPlusOne()}
TWO_MAPS = pytest.mark.parametrize("phi", TWO.values(), ids=TWO)

NO_DECAY: tuple[list[Tensor], dict[str, str]] = ([], {"pair_denominator": "same"})


def decays_for(feature_map: FeatureMap, length: int) -> list[tuple[list[Tensor], dict[str, str]]]:
    """Of heads and of pairs, and how a denominator fades below them."""
    of_pairs = [some_pair_decay(2, length, feature_map.count(D) // 2)]
    return [
        ([some_decay(2, length, resets=True)], {"pair_denominator": "same"}),
        *((of_pairs, {"pair_denominator": name}) for name in ("same", "head")),
    ]


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    feature_map: FeatureMap,
    causal: bool,
    key_padding_mask: Tensor,
    rope: str = "after",
    denominator: str = "unrotated",
    positions: tuple[Tensor, Tensor] | None = None,
    rope_base: float = 10000.0,
    pair_denominator: str = "same",
    rope_fraction: float = 1.0,
) -> Tensor:
    """Eq. 19 and its variations, pair by pair, relative to the largest that a query sees."""
    counted = ((~key_padding_mask).cumsum(-1) - 1).clamp(min=0)
    of_q, of_k = positions or (counted, counted)

    def turned(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(partly_turned(x, at, rope_fraction, base=rope_base) for x, at in ((q, of_q), (k, of_k)))

    if rope == "before":
        q, k = turned(q, k)
    (q, q_scale), (k, k_scale) = feature_map.queries(q), feature_map.keys(k)
    pairs = None
    if log_decay is not None:
        log_decay = log_decay.masked_fill(key_padding_mask.view(len(q), 1, -1, *[1] * (log_decay.dim() - 3)), 0)
        if log_decay.dim() == 4:
            pairs, log_decay = log_decay, None
    mean = pairs.clamp(min=-1e4).mean(-1, keepdim=True) if pairs is not None and pair_denominator == "head" else pairs
    below = faded_products(q, k, mean)
    if rope == "after":
        q, k = turned(q, k)
    above = faded_products(q, k, pairs)
    exponent = torch.zeros_like(above)
    if q_scale is not None and k_scale is not None:
        exponent = q_scale + k_scale.mT
    if log_decay is not None:
        exponent = exponent + between(log_decay)
    hidden = key_padding_mask[:, None, None]
    if causal:
        hidden = hidden | torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    exponent = exponent.masked_fill(hidden, -torch.inf)
    if denominator in ("none", "abs"):
        weights = above * exponent.exp()
        return weights @ v / (1 if denominator == "none" else weights.sum(-1, keepdim=True).abs().clamp(min=1))
    factor = (exponent - exponent.detach().amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    total = ((above if denominator == "rotated" else below) * factor).sum(-1, keepdim=True)
    return (above * factor) @ v / total.masked_fill(total == 0, torch.inf)


def faded_products(q: Tensor, k: Tensor, log_decay: Tensor | None) -> Tensor:
    """q_iᵀ k_j, of which each pair of features fades by what lies between."""
    if log_decay is None:
        return q @ k.mT
    q, k = (x.unflatten(-1, (log_decay.shape[-1], -1)).movedim(-2, -3) for x in (q, k))
    return ((q @ k.mT).movedim(2, -1) * between(log_decay.movedim(-1, 2)).exp().movedim(2, -1)).sum(-1)


def between(log_decay: Tensor) -> Tensor:
    """ln Π a of the tokens after one of a pair, up to the other, (B, H, N, N): a sum of its own for every pair."""
    log_decay, rows, row = log_decay.masked_fill(log_decay <= -1e4, -torch.inf), [], log_decay[..., :0]
    for t in range(log_decay.shape[-1]):
        row = F.pad(row + log_decay[..., t : t + 1], (0, 1))
        rows.append(F.pad(row, (0, log_decay.shape[-1] - t - 1)))
    past = torch.stack(rows, dim=-2)
    return past + past.mT


@pytest.mark.parametrize("kind", ["causal", "both ways", "cross"])
@pytest.mark.parametrize("name", ["learned", "plain"])  # with a scale and without
def test_the_reference_is_the_definition(name: str, kind: str) -> None:
    feature_map = MAPS[name](1e-6)
    queries, keys = (7, 11) if kind == "cross" else (9, 9)
    qkv, decays = random_qkv(2, HEADS, queries, keys), [] if kind == "cross" else decays_for(feature_map, 9)
    for rope, denominator, (decay, below) in itertools.product(
        ("after", "before", "none"), ("unrotated", "rotated", "none", "abs"), [NO_DECAY, *decays]
    ):
        if below["pair_denominator"] == "head" and denominator != "unrotated":
            continue
        options: dict[str, Any] = {
            "feature_map": feature_map,
            "rope": rope,
            "denominator": denominator,
            "causal": kind == "causal",
            "positions": (torch.arange(queries) * 3, torch.stack((torch.arange(keys), 5 + torch.arange(keys) * 2))),
            "rope_base": 50.0,
            "rope_fraction": 1.0 if rope == "none" else 0.6,
            "key_padding_mask": some_padding(2, keys),
        } | below
        found = outputs_and_gradients([*qkv, *decay], implementation="reference", **options)
        assert_near(found, outputs_and_gradients([*qkv, *decay], by_definition, **options))


CASES = [
    *itertools.product(KINDS, IN_BLOCKS, [17], [1]),
    *itertools.product(KINDS, ["reference", "recurrent"], [17], [3]),
    *itertools.product(KINDS, FORMS, [1], [len(SETTINGS)]),
    # Chunks end and stretches begin.
    *itertools.product(KINDS[:3], IN_BLOCKS, [257], [3]),
    # What else a map is made of concerns each token by itself.
    *itertools.product([name for name in MAPS if name not in KINDS], IN_BLOCKS, [17], [len(SETTINGS)]),
]
"""maps, implementations, lengths, and of how many settings one is tested"""


@CAUSAL
@pytest.mark.parametrize(("name", "form", "length", "step"), CASES, ids=str)
def test_every_implementation_gives_the_reference_s_values_and_gradients(
    name: str, form: str, length: int, step: int, causal: bool
) -> None:
    """With and without decays and resets, where keys and values are no numbers at padding."""
    feature_map = MAPS[name](1e-6)
    (q, *kv), mask = random_qkv(2, HEADS, length), some_padding(2, length)
    held = [x.masked_fill(mask[:, None, :, None], torch.nan) for x in kv]
    decays = [NO_DECAY, *decays_for(feature_map, length)]
    for (rope, denominator), (decay, below) in itertools.product(SETTINGS[::step], decays):
        if below["pair_denominator"] == "head" and denominator != "unrotated":
            continue
        positions = torch.stack((torch.arange(length) + 1000, torch.arange(length) * 2))
        if denominator == "rotated":
            positions = slow_positions(length).expand(2, -1)
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal, positions=positions)
        options |= {"key_padding_mask": mask, **below}
        expected = outputs_and_gradients([q, *kv, *decay], implementation="reference", **options)
        assert_near(outputs_and_gradients([q, *held, *decay], implementation=form, **options), expected)


class OneSided(FavorPlus):
    """A subclass that maps queries in another way than keys."""

    def queries(self, q: Tensor) -> Features:
        return super().queries(q / 2)


@pytest.mark.parametrize("make", [lambda: OneSided(D, M), GivenFeatures, lambda: Hedgehog(D), lambda: Taylor(D)])
def test_maps_are_used_as_they_are_and_write_nothing_into_inputs(make: Callable[[], FeatureMap]) -> None:
    feature_map = make().double()
    with torch.no_grad():
        for parameter in feature_map.parameters():
            parameter.copy_(random(*parameter.shape, seed=5) / 2)
    for length, causal in ((17, False), (150, True)):
        qkv = [x.abs() for x in random_qkv(2, HEADS, length)]
        kept, mask = [x.clone() for x in qkv], some_padding(2, length)
        for rope, denominator in SETTINGS:
            options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
            options |= dict(positions=slow_positions(length), key_padding_mask=mask)
            expected = outputs_and_gradients(qkv, implementation="reference", **options)
            for form in FAST if length < 20 else IN_BLOCKS:
                assert_near(outputs_and_gradients(qkv, implementation=form, **options), expected)
            with torch.no_grad():
                attended(*qkv, **options)
        assert_identical(qkv, kept)


@pytest.mark.slow
@pytest.mark.parametrize("by_hand", [True, False])
def test_long_sequences_with_many_features(by_hand: bool) -> None:
    """Longer and wider than what an implementation works on at a time."""
    wide = FavorPlus(D, 1024 if by_hand else 512, eps=0.0).double()
    wide.omega.requires_grad_(not by_hand)
    qkv, positions = random_qkv(2, HEADS, 1100), torch.arange(1100) * torch.tensor([[1.0], [0.5]])
    options: dict[str, Any] = dict(feature_map=wide, causal=True)
    options |= dict(key_padding_mask=some_padding(2, 1100), positions=positions)
    expected = outputs_and_gradients(qkv, implementation="reference", **options)
    assert_near(outputs_and_gradients(qkv, **options), expected)


@pytest.mark.parametrize(("loudness", "changed_to"), [(1, 100), (100, 0.01)])
def test_the_future_changes_nothing(feature_map: FeatureMap, loudness: float, changed_to: float, form: str) -> None:
    """Also not where all keys of the past are far smaller in φ than one of the future, as loud keys are in FAVOR+."""
    length = 90
    qkv = [loudness * x.float() for x in random_qkv(1, HEADS, length)]
    other = [changed_to * x.float() for x in random_qkv(1, HEADS, length, seed=1)]
    for rope, denominator in SETTINGS[::2]:
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True, implementation=form)
        whole = attended(*qkv, **options)
        for end in (1, 64, 76):  # at, before and after the ends of chunks
            changed = [torch.cat((x[:, :, :end], y[:, :, end:]), dim=2) for x, y in zip(qkv, other, strict=True)]
            expected = whole[:, :, :end]
            assert expected.any() or denominator in ("none", "abs")
            # A matrix product may add the same numbers in another order; the recurrence may not.
            tolerance = 0 if form == "recurrent" else 1e-6
            assert_near(attended(*changed, **options)[:, :, :end], expected, tolerance)


def test_no_gradient_reaches_the_future(feature_map: FeatureMap, form: str) -> None:
    for rope, denominator in SETTINGS[::2]:
        qkv = [x.requires_grad_() for x in random_qkv(1, HEADS, 70)]
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=True, implementation=form)
        output = attended(*qkv, **options)
        for last in (5, 64):
            past = output[:, :, : last + 1].square().sum()
            for gradient in torch.autograd.grad(past, qkv, retain_graph=True):
                assert not gradient[:, :, last + 1 :].any()
                assert gradient[:, :, : last + 1].any()


STRONG = [0.0, -50.0, -100.0, -1000.0, -1e4, -1e20, torch.finfo(torch.float32).min, -math.inf]
Extreme = tuple[list[Tensor], Tensor]


def some_length(form: str) -> int:
    """Of more than a chunk; to the recurrence one token is like another, and many take long."""
    return 12 if form == "recurrent" else 67


def nowhere(rows: int, length: int) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.bool)


def one_strong_decay() -> Extreme:
    """Of a sequence each, at its first token, which hides all from padding on the left, in the middle and last."""
    length, start, sides = 70, 20, 3
    log_decay = -random(1, HEADS, length, seed=70).abs().repeat(sides * len(STRONG), 1, 1) * 0.1
    log_decay[..., [start, 40, 49, length - 1]] = torch.tensor(STRONG).double().repeat(sides)[:, None, None]
    padding = torch.zeros(sides, len(STRONG), length, dtype=torch.bool)
    padding[0, :, :start] = padding[1, :, -start:] = True
    qkv = [x.repeat(len(log_decay), 1, 1, 1) for x in random_qkv(1, HEADS, length)]
    return [*qkv, log_decay], padding.flatten(0, 1)


def strong_decays_throughout() -> Extreme:
    """Padding sees what is many of them away."""
    log_decay = torch.tensor(STRONG).double()[:, None, None].expand(-1, HEADS, 40)
    padding = nowhere(len(STRONG), 40)
    padding[:, :5] = padding[:, 17:20] = True
    return [*(x.repeat(len(STRONG), 1, 1, 1) for x in random_qkv(1, HEADS, 40)), log_decay], padding


def long_vectors() -> Extreme:
    """FAVOR+ features far below the smallest number: only their stabiliser tells them from zero, and padding's."""
    padding = nowhere(3, 67)
    padding[0, :66] = padding[1, 5:] = padding[2, 1::3] = True
    return [*(60 * x for x in random_qkv(3, HEADS, 67)), torch.zeros(3, HEADS, 67).double()], padding


def a_loud_key() -> Extreme:
    """A stabiliser that is a running maximum stays large after it; what follows must survive that."""
    q, k, v = random_qkv(1, HEADS, 67)
    k[:, :, 3] *= 12
    return [q, k, v, torch.zeros(1, HEADS, 67).double()], nowhere(1, 67)


def small_features() -> Extreme:
    """Of elu+1 denominators of e^−50, whose squares are no float32 numbers."""
    q, k, v = random_qkv(2, HEADS, 30)
    q, k = (x - 26 - x.amax() for x in (q, k))
    return [q, k, v, torch.tensor([-0.1, 0]).double()[:, None, None].expand(-1, HEADS, 30)], nowhere(2, 30)


@CAUSAL
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("make", "names", "tolerance"),
    [
        # Scores of keys with strong decays differ by much more than one.
        (one_strong_decay, ("favor+", "elu+1"), 10 * TOLERANCES[torch.float32]),
        (strong_decays_throughout, ("favor+", "elu+1"), 10 * TOLERANCES[torch.float32]),
        (small_features, ("elu+1",), 10 * TOLERANCES[torch.float32]),
        (long_vectors, ("favor+", "elu+1"), TOLERANCES[torch.float64]),
        (a_loud_key, ("favor+", "elu+1"), TOLERANCES[torch.float64]),
    ],
)
def test_what_is_next_to_nothing_is_as_the_definition_has_it(
    make: Callable[[], Extreme], names: tuple[str, ...], tolerance: float, form: str, causal: bool
) -> None:
    """Small denominators must not be squared on their way back, and what a query sees must be weighed by what is left
    of the nearest. ln a = −1e4 and below is a reset, whatever holds it."""
    inputs, mask = make()
    dtype = torch.float64 if tolerance == TOLERANCES[torch.float64] else torch.float32
    for name in names:
        found = []
        for function, own in ((by_definition, torch.float64), (attended, dtype)):
            leaves = [x.to(own).requires_grad_() for x in inputs]
            options = {} if function is by_definition else {"implementation": form}
            output = function(*leaves, feature_map=TWO[name], causal=causal, key_padding_mask=mask, **options)
            found.append([output, *torch.autograd.grad(output, leaves, random(*output.shape, seed=99).to(output))])
        # Each sequence is its own scale; decays that nothing depends on have gradients of rounding errors.
        for expected, actual in zip(*(zip(*each, strict=True) for each in found), strict=True):
            assert_near(actual[0].double(), expected[0], tolerance)
            together = [torch.cat([x.flatten().double() for x in each[1:]]) for each in (actual, expected)]
            assert_near(*together, tolerance)


def test_a_query_that_sees_no_key_gives_zeros(feature_map: FeatureMap, form: str) -> None:
    length = some_length(form)
    mask = nowhere(2, length)
    mask[0], mask[1, :-1] = True, True
    for (rope, denominator), causal in itertools.product(SETTINGS, (True, False)):
        q, *kv = (x.float() for x in random_qkv(2, HEADS, length))
        qkv = [x.requires_grad_() for x in (q, *(y.masked_fill(mask[:, None, :, None], torch.nan) for y in kv))]
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
        output = attended(*qkv, **options, key_padding_mask=mask, implementation=form)
        assert output.isfinite().all()
        assert not output[0].any()
        assert output[1, :, -1:].any()
        assert bool(output[1, :, :-1].any()) == (not causal)
        for gradient in torch.autograd.grad(output.square().sum() + output.sum(), qkv):
            assert gradient.isfinite().all()
            assert not gradient[0].any()


def test_norms_up_to_ten_thousand_stay_finite(feature_map: FeatureMap, form: str) -> None:
    """Norms grow and shrink along the sequence, so that a stabiliser must go both ways."""
    length = some_length(form)
    norms = torch.logspace(-4, 4, length)[torch.randperm(length, generator=torch.Generator().manual_seed(0))]
    q, k, v = (x.float() for x in random_qkv(3, HEADS, length))
    q, k = (x / x.norm(dim=-1, keepdim=True) * norms[:, None] for x in (q, k))
    mask = nowhere(3, length)
    mask[0], mask[1, ::3] = True, True
    for (rope, denominator), causal in itertools.product(SETTINGS, (True, False)):
        qkv = [x.requires_grad_() for x in (q, k, v)]
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
        output = attended(*qkv, **options, key_padding_mask=mask, implementation=form)
        gradients = torch.autograd.grad(output.sum(), qkv)
        assert all(x.isfinite().all() for x in (output, *gradients)), (rope, denominator, causal)


@pytest.mark.parametrize("rope", ["after", "before", "none"])
def test_relu_of_queries_and_keys_that_are_orthogonal_is_as_large_as_promised(form: str, rope: str) -> None:
    """Values and features are at most 1, and the denominator is of the size of ε."""
    feature_map, v = ReluFeatures(), torch.ones(1, 1, 67, 4)
    q = torch.tensor([1.0, 0, 1, 0]).expand(1, 1, 67, 4)
    largest = feature_map(q).norm(dim=-1).max() / feature_map.eps if rope == "after" else 1
    for causal in (True, False):
        qkv = [x.clone().requires_grad_() for x in (q, 1 - q, v)]
        output = attended(*qkv, feature_map=feature_map, rope=rope, causal=causal, implementation=form)
        assert all(x.isfinite().all() for x in (output, *torch.autograd.grad(output.sum(), qkv)))
        assert output.abs().max() <= largest * 1.0001
        assert output.abs().max() > (1e4 if rope == "after" else 0.9)


@CAUSAL
def test_sums_without_a_denominator_are_cut_off_and_stay_finite(causal: bool) -> None:
    # Along a row ω of its draw φ(x) reaches exp(|ω|²/2): for D = 512 its square is beyond float32.
    feature_map = FavorPlus(512, 2)
    x = (feature_map.omega[:1] * 512**0.25).expand(1, 1, 5, 512)
    assert not feature_map(x).square().isfinite().any()
    qkv, options = [x, x, random_qkv(1, 1, 5)[2].float()], {"denominator": "none", "causal": causal}
    for form in FORMS:
        found = outputs_and_gradients(qkv, feature_map=feature_map, implementation=form, **options)
        assert all(y.isfinite().all() for y in found)
    for phi in (FavorPlus(D, M, seed=1).double(), Hedgehog(D).double()):
        qkv = [x * scale for x, scale in zip(random_qkv(1, HEADS, 9), (60, 60, 1), strict=True)]
        expected = outputs_and_gradients(qkv, feature_map=phi, implementation="reference", **options)
        # e^60, times what is summed, whatever the exponents are.
        assert all(x.abs().max() < 1e30 for x in expected)
        for form in FAST:
            assert_near(outputs_and_gradients(qkv, feature_map=phi, implementation=form, **options), expected, 1e-9)


@TWO_MAPS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_hundred_thousandth_token_is_as_exact_as_the_hundredth(phi: FeatureMap, dtype: torch.dtype) -> None:
    """At a = 1/2 what was 200 tokens ago counts 2^−200."""
    inputs = [*random_qkv(1, HEADS, 100_000), torch.full((1, HEADS, 100_000), math.log(0.5)).double()]
    options: dict[str, Any] = dict(feature_map=phi, rope="none", causal=True)
    y = attended(*(x.to(dtype) for x in inputs), **options)
    expected = attended(*(x[:, :, -200:].to(dtype).double() for x in inputs), implementation="reference", **options)
    assert_near(y[:, :, -50:].double(), expected[:, :, -50:], TOLERANCES[dtype])


def gradients_of(inputs: list[Tensor], weights: Tensor, **options: Any) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    y = attended(*leaves, causal=True, **options)
    return list(torch.autograd.grad(y, leaves, weights[:, :, : y.shape[2]].to(y)))


@pytest.mark.parametrize("form", IN_BLOCKS)
@TWO_MAPS
def test_the_first_token_s_gradients_are_exact_before_many_others(phi: FeatureMap, form: str) -> None:
    """At a = 1/2 what comes 250 tokens later counts 2^−250; rounding errors of all that comes would not."""
    length = 30_000
    inputs = [*random_qkv(1, HEADS, length), torch.full((1, HEADS, length), math.log(0.5), dtype=torch.float64)]
    weights, options = random(1, HEADS, length, D, seed=90), {"feature_map": phi, "rope": "none"}
    expected = gradients_of([x[:, :, :400] for x in inputs], weights, implementation="reference", **options)
    found = gradients_of([x.float() for x in inputs], weights, implementation=form, **options)
    for actual, wanted in zip(found, expected, strict=True):
        assert_near(actual[:, :, :150].double(), wanted[:, :, :150], TOLERANCES[torch.float32])


@pytest.mark.parametrize(("length", "form"), [*((70, form) for form in FAST), *((1500, form) for form in IN_BLOCKS)])
@pytest.mark.parametrize("of_pairs", [False, True], ids=["head", "pairs"])
@TWO_MAPS
def test_no_gradient_passes_a_reset_not_even_rounding_errors(
    phi: FeatureMap, of_pairs: bool, length: int, form: str
) -> None:
    """What comes after the reset, or after those of all pairs one by one, is a million times as loud."""
    start, decay = length // 2 + 3, some_decay(1, length)
    end, decay[..., start] = start, -torch.inf
    if of_pairs:
        pairs = phi.count(D) // 2
        decay, end = some_decay(1, length).unsqueeze(-1) * torch.arange(1, pairs + 1), start + pairs
        for pair in range(pairs):
            decay[:, :, start + pair, pair] = -1e4
    inputs = [x.float() for x in (*random_qkv(1, HEADS, length), decay)]
    loud = torch.ones(1, HEADS, length, D)
    loud[:, :, end:] = 1e6
    alone = [x[:, :, :end].double() for x in inputs]
    expected = gradients_of(alone, loud, feature_map=phi, implementation="reference")
    for found, wanted in zip(gradients_of(inputs, loud, feature_map=phi, implementation=form), expected, strict=True):
        assert_near(found[:, :, :start].double(), wanted[:, :, :start], 10 * TOLERANCES[torch.float32])


@CAUSAL
@pytest.mark.parametrize("rope", ["after", "before"])
@pytest.mark.parametrize("name", ["favor+", "learned"])  # turned by the operator and before it
def test_given_angles_are_those_of_positions(name: str, rope: str, causal: bool) -> None:
    feature_map, positions = MAPS[name](1e-6), torch.arange(70) * 3
    width = feature_map.count(D) if rope == "after" else D
    angles = (positions[:, None] * rope_frequencies(width)).expand(1, 1, -1, -1)
    qkv, options = random_qkv(2, HEADS, 70), dict(feature_map=feature_map, rope=rope, causal=causal)
    expected = outputs_and_gradients(qkv, positions=positions, **options)
    for given in (angles, angles.expand(2, HEADS, -1, -1), angles.expand(1, HEADS, -1, -1) + 6 * math.pi):

        def turned(q: Tensor, k: Tensor, v: Tensor, given: Tensor = given, **options: Any) -> Tensor:
            return attended(q, k, v, angles=given, **options)

        assert_near(outputs_and_gradients(qkv, turned, **options), expected)
    low = angles.bfloat16()  # whose cosines are not rounded
    assert_identical(attended(*qkv, angles=low, **options), attended(*qkv, angles=low.double(), **options))


@pytest.mark.parametrize("decay", [False, True], ids=["no decay", "decay"])
@CAUSAL
@pytest.mark.parametrize("form", FORMS)
def test_a_segment_is_as_if_it_were_alone(form: str, causal: bool, decay: bool) -> None:
    ids = torch.tensor([[0] * 7 + [3] + [5] * 62 + [2] * 20, [4] * 20 + [1] * 70])
    inputs = [*random_qkv(2, HEADS, 90), *([-random(2, HEADS, 90, seed=5).abs()] if decay else [])]
    for phi, (rope, denominator) in itertools.product(TWO.values(), SETTINGS[::2]):
        options: dict[str, Any] = {"feature_map": phi, "rope": rope, "denominator": denominator, "causal": causal}
        found = attended(*inputs, **options, segment_ids=ids, implementation=form)
        for row in range(2):
            for name in ids[row].unique():
                at = (ids[row] == name).nonzero().squeeze(-1)
                one = [x[row : row + 1, :, at] for x in inputs]
                # Rotated denominators can come close to zero.
                alone = attended(*one, **options, implementation="reference")[0]
                assert_near(found[row, :, at], alone, 1e-9)


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf])
def test_a_decay_that_is_none_is_refused_but_at_padding(form: str, value: float) -> None:
    log_decay, padding = torch.zeros(2, HEADS, 5), nowhere(2, 5)
    log_decay[1, 0, 3], padding[1, 3] = value, True
    for causal in (True, False):

        def call(causal: bool = causal, **options: Any) -> Tensor:
            return attended(
                *random_qkv(2, HEADS, 5),
                log_decay,
                feature_map=EluPlusOne(),
                causal=causal,
                implementation=form,
                **options,
            )

        assert_refused(call, ["log_decay", "NaN" if math.isnan(value) else str(value), "≤ 0"])
        assert call(key_padding_mask=padding).isfinite().all()
