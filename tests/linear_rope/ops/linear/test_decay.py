"""Decays, resets and given angles: every form against the oracle, and the oracle against loops over pairs.

Tolerances are those of test_linear_attention.py.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, FeatureMap, NTKAware, apply_rope, linear_attention
from linear_rope.positions.rotary import rope_frequencies
from tests.linear_rope.tensors import (
    FAST,
    HEADS,
    SETTINGS,
    TOLERANCES,
    D,
    M,
    assert_near,
    assert_refused,
    outputs_and_gradients,
    random,
    random_qkv,
    slow_positions,
    some_padding,
)

IN_BLOCKS = [form for form in FAST if form != "recurrent"]
CAUSAL = pytest.mark.parametrize("causal", [True, False])


def some_decay(batch: int, length: int, *, resets: bool = False, strength: float = 0.3) -> Tensor:
    """ln a ≤ 0, zero here and there, and with ``resets`` −∞ at every twentieth token or so."""
    log_decay = -torch.nn.functional.softplus(random(batch, HEADS, length, seed=70)) * strength
    log_decay[..., ::7] = 0
    if resets:
        log_decay[random(batch, HEADS, length, seed=71) > 1.6] = -torch.inf
        log_decay[..., length // 2] = -torch.inf
    return log_decay


def with_decay(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, **options: Any) -> Tensor:
    return linear_attention(q, k, v, log_decay=log_decay, **options)


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, *, causal: bool, feature_map: FeatureMap
) -> Tensor:
    """Eq. 19 with Π a between the pair, one pair at a time."""
    positions = torch.arange(q.shape[2])
    plain_q, plain_k = feature_map(q), feature_map(k)
    q, k = apply_rope(plain_q, positions), apply_rope(plain_k, positions)
    rows = []
    for m in range(q.shape[2]):
        above, below = torch.zeros_like(v[:, :, 0]), torch.zeros_like(v[:, :, 0, :1])
        for n in range(m + 1 if causal else q.shape[2]):
            kept = log_decay[:, :, min(m, n) + 1 : max(m, n) + 1].exp().prod(-1, keepdim=True)
            above = above + kept * (q[:, :, m] * k[:, :, n]).sum(-1, keepdim=True) * v[:, :, n]
            below = below + kept * (plain_q[:, :, m] * plain_k[:, :, n]).sum(-1, keepdim=True)
        rows.append(above / below)
    return torch.stack(rows, dim=2)


@CAUSAL
def test_the_reference_is_the_definition(feature_map: FeatureMap, causal: bool) -> None:
    options = dict(feature_map=feature_map, causal=causal)
    inputs = [*random_qkv(2, HEADS, 7), some_decay(2, 7, resets=True)]
    actual = outputs_and_gradients(inputs, with_decay, implementation="reference", **options)
    expected = outputs_and_gradients(inputs, by_definition, **options)
    assert_near(actual[0], expected[0])
    # A product of zeros has a derivative by other means than its logarithm: compare where nothing is reset.
    inputs[3] = some_decay(2, 7)
    assert_near(
        outputs_and_gradients(inputs, with_decay, implementation="reference", **options),
        outputs_and_gradients(inputs, by_definition, **options),
    )


@CAUSAL
@pytest.mark.parametrize("length", [1, 17, 257])
@pytest.mark.parametrize("form", FAST)
def test_every_form_gives_the_reference_s_values_and_gradients(
    feature_map: FeatureMap, form: str, length: int, causal: bool
) -> None:
    inputs = [*random_qkv(2, HEADS, length), some_decay(2, length, resets=True)]
    for rope, denominator in SETTINGS if length < 257 else SETTINGS[:1]:
        options = dict(feature_map=feature_map, rope=rope, denominator=denominator, causal=causal)
        options |= dict(key_padding_mask=some_padding(2, length))
        options["positions"] = slow_positions(length) if denominator == "rotated" else None
        expected = outputs_and_gradients(inputs, with_decay, implementation="reference", **options)
        assert_near(outputs_and_gradients(inputs, with_decay, implementation=form, **options), expected)


# Every two of a map, a strength, and resets or none.
@pytest.mark.parametrize(
    ("name", "strength", "resets"),
    [
        *(("favor+", 1e-4, False), ("favor+", 0.1, True), ("favor+", 20.0, False)),
        *(("elu+1", 1e-4, True), ("elu+1", 0.1, False), ("elu+1", 20.0, True)),
    ],
)
def test_more_than_one_block_with_strong_and_weak_decays(name: str, strength: float, resets: bool) -> None:
    feature_map = FavorPlus(D, M).double() if name == "favor+" else EluPlusOne()
    inputs = [*random_qkv(1, HEADS, 2100), some_decay(1, 2100, resets=resets, strength=strength)]
    options = dict(feature_map=feature_map, causal=True)
    expected = outputs_and_gradients(inputs, with_decay, implementation="reference", **options)
    assert_near(outputs_and_gradients(inputs, with_decay, **options), expected)
    low = [x.float() for x in inputs]
    assert_near(outputs_and_gradients(low, with_decay, **options), expected, 10 * TOLERANCES[torch.float32])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["favor+", "elu+1"])
def test_the_hundred_thousandth_token_is_as_exact_as_the_hundredth(name: str, dtype: torch.dtype) -> None:
    """At a = 1/2 what was 200 tokens ago counts 2^−200."""
    length, last = 100_000, 200
    feature_map = FavorPlus(D, M).double() if name == "favor+" else EluPlusOne()
    q, k, v = (x.to(dtype) for x in random_qkv(1, HEADS, length))
    log_decay = torch.full((1, HEADS, length), math.log(0.5), dtype=dtype)
    options = dict(feature_map=feature_map, rope="none", causal=True)
    y = linear_attention(q, k, v, log_decay=log_decay, **options)
    tail = [x[:, :, -last:].double() for x in (q, k, v, log_decay)]
    expected = with_decay(*tail, implementation="reference", **options)
    assert_near(y[:, :, -50:].double(), expected[:, :, -50:], TOLERANCES[dtype])


@pytest.mark.parametrize("implementation", IN_BLOCKS)
@pytest.mark.parametrize("name", ["favor+", "elu+1"])
def test_the_first_token_s_gradients_are_exact_before_a_hundred_thousand_others(name: str, implementation: str) -> None:
    """At a = 1/2 what comes 250 tokens later counts 2^−250; rounding errors of all that comes would not."""
    length, first = 100_000, 400
    feature_map = FavorPlus(D, M).double() if name == "favor+" else EluPlusOne()
    inputs = [*random_qkv(1, HEADS, length), torch.full((1, HEADS, length), math.log(0.5), dtype=torch.float64)]
    weights = random(1, HEADS, length, D, seed=90)

    def gradients(inputs: list[Tensor], implementation: str) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        y = with_decay(*leaves, feature_map=feature_map, rope="none", causal=True, implementation=implementation)
        found = torch.autograd.grad((y * weights[:, :, : y.shape[2]].to(y.dtype)).sum(), leaves)
        return [x[:, :, :150] for x in found]

    expected = gradients([x[:, :, :first] for x in inputs], "reference")
    for found, wanted in zip(gradients([x.float() for x in inputs], implementation), expected, strict=True):
        assert_near(found.double(), wanted, TOLERANCES[torch.float32])


@pytest.mark.parametrize(
    ("length", "implementation"), [*((70, form) for form in FAST), *((1500, form) for form in IN_BLOCKS)]
)
def test_no_gradient_passes_a_reset_not_even_rounding_errors(
    feature_map: FeatureMap, length: int, implementation: str
) -> None:
    """What comes after the reset is a million times as loud."""
    start = length // 2 + 3
    inputs = [x.float() for x in (*random_qkv(1, HEADS, length), some_decay(1, length))]
    inputs[3][..., start] = -torch.inf
    loud = torch.ones(length, 1)
    loud[start:] = 1e6

    def gradients(inputs: list[Tensor], loud: Tensor, implementation: str) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        y = with_decay(*leaves, feature_map=feature_map, causal=True, implementation=implementation)
        return [x[:, :, :start] for x in torch.autograd.grad((y * loud.to(y.dtype)).sum(), leaves)]

    alone = [x[:, :, :start].double() for x in inputs]
    expected = gradients(alone, loud[:start], "reference")
    for found, wanted in zip(gradients(inputs, loud, implementation), expected, strict=True):
        assert_near(found.double(), wanted, 10 * TOLERANCES[torch.float32])


@CAUSAL
@pytest.mark.parametrize("start", [1, 40])
def test_a_segment_of_padding_alone_sees_nothing(feature_map: FeatureMap, causal: bool, start: int) -> None:
    inputs, padding = [*random_qkv(1, HEADS, 70), torch.zeros(1, HEADS, 70)], torch.zeros(1, 70, dtype=torch.bool)
    inputs[3][..., start], padding[:, :start] = -torch.inf, True
    options = dict(feature_map=feature_map, causal=causal, key_padding_mask=padding)
    expected = outputs_and_gradients(inputs, with_decay, implementation="reference", **options)
    assert not expected[0].unflatten(0, (1, HEADS, 70, -1))[:, :, :start].any()
    for implementation in ("auto", "chunked"):
        assert_near(outputs_and_gradients(inputs, with_decay, implementation=implementation, **options), expected)


@pytest.mark.parametrize("length", [5, 70])
@CAUSAL
def test_gradients_are_those_of_finite_differences(feature_map: FeatureMap, causal: bool, length: int) -> None:
    """At default settings, ε included."""
    inputs = [x.requires_grad_() for x in (*random_qkv(1, HEADS, length), some_decay(1, length))]
    angles = random(1, HEADS, length, feature_map.count(D) // 2, seed=80).requires_grad_()

    def attend(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, angles: Tensor) -> Tensor:
        # Through a function that stays at or below zero on both sides of zero.
        log_decay = -log_decay.square()
        return linear_attention(q, k, v, feature_map=feature_map, causal=causal, log_decay=log_decay, angles=angles)

    assert torch.autograd.gradcheck(attend, (*inputs, angles), fast_mode=True, atol=1e-6, rtol=1e-5)


@CAUSAL
@pytest.mark.parametrize("rope", ["after", "before"])
def test_given_angles_are_those_of_positions(feature_map: FeatureMap, rope: str, causal: bool) -> None:
    positions = torch.arange(70) * 3
    width = feature_map.count(D) if rope == "after" else D
    angles = (positions[:, None] * rope_frequencies(width)).expand(1, 1, -1, -1)
    qkv, options = random_qkv(2, HEADS, 70), dict(feature_map=feature_map, rope=rope, causal=causal)
    expected = outputs_and_gradients(qkv, positions=positions, **options)
    for given in (angles, angles.expand(2, HEADS, -1, -1), angles.expand(1, HEADS, -1, -1) + 6 * math.pi):
        assert_near(outputs_and_gradients(qkv, angles=given, **options), expected)


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = random_qkv(2, HEADS, 5)
    options = dict(feature_map=EluPlusOne())
    assert_refused(
        lambda: linear_attention(q, k, v, log_decay=torch.zeros(2, 5), **options), ["log_decay", "(2, 2, 5)"]
    )
    assert_refused(
        lambda: linear_attention(q, k[:, :, :4], v[:, :, :4], log_decay=torch.zeros(2, 2, 5), **options),
        ["log_decay", "5 queries"],
    )
    assert_refused(lambda: linear_attention(q, k, v, angles=torch.zeros(5, 2), **options), ["angles", "(2, 2, 5, 2)"])
    angles = torch.zeros(2, 2, 5, 2)
    assert_refused(lambda: linear_attention(q, k, v, rope="none", angles=angles, **options), ["angles", "none"])
    assert_refused(lambda: linear_attention(q, k, v, angles=angles.long(), **options), ["angles", "int64", "radians"])
    assert_refused(
        lambda: linear_attention(q, k[:, :, :4], v[:, :, :4], angles=angles, **options),
        ["angles", "5 queries", "4 keys", "positions"],
    )
    for name, given in (("positions", torch.arange(5)), ("rope_scaling", NTKAware(2.0))):
        beside = partial(linear_attention, q, k, v, angles=angles, **{name: given}, **options)
        assert_refused(beside, [f"{name} was given beside angles"])


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf])
@CAUSAL
def test_a_decay_that_is_none_is_refused_but_at_padding(form: str, causal: bool, value: float) -> None:
    q, k, v = random_qkv(2, HEADS, 5)
    log_decay, padding = torch.zeros(2, HEADS, 5), torch.zeros(2, 5, dtype=torch.bool)
    log_decay[1, 0, 3] = value
    options = dict(feature_map=EluPlusOne(), causal=causal, implementation=form, log_decay=log_decay)
    assert_refused(
        lambda: linear_attention(q, k, v, **options), ["log_decay", "NaN" if math.isnan(value) else str(value), "≤ 0"]
    )
    padding[1, 3] = True
    assert linear_attention(q, k, v, key_padding_mask=padding, **options).isfinite().all()


def test_values_of_a_decay_are_not_read_where_a_call_is_traced() -> None:
    """Or reading them would fail."""
    q, k, v = random_qkv(2, HEADS, 5)

    def attend(log_decay: Tensor) -> Tensor:
        return linear_attention(q, k, v, feature_map=EluPlusOne(), causal=True, log_decay=log_decay)

    log_decays = -random(3, 2, HEADS, 5).abs()
    assert_near(torch.func.vmap(attend)(log_decays), torch.stack([attend(x) for x in log_decays]))
    on_meta = [x.to("meta") for x in (q, k, v, log_decays[0])]
    linear_attention(*on_meta[:3], feature_map=EluPlusOne(), causal=True, log_decay=on_meta[3])


@pytest.mark.parametrize("implementation", ["chunked", "auto"])
def test_positions_and_angles_of_each_of_many_calls_go_through_vmap(implementation: str) -> None:
    """Which are one for both sequences of a call, and others in another call."""
    q, k, v = random_qkv(2, HEADS, 70)
    options: dict[str, Any] = dict(feature_map=EluPlusOne(), causal=True, implementation=implementation)

    def at(positions: Tensor) -> Tensor:
        return linear_attention(q, k, v, positions=positions, **options)

    def turned(angles: Tensor) -> Tensor:
        return linear_attention(q, k, v, angles=angles, **options)

    positions, angles = torch.arange(70) * torch.tensor([[1], [3], [0]]), random(3, 1, 1, 70, D // 2, seed=91)
    assert_near(torch.func.vmap(at)(positions), torch.stack([at(x) for x in positions]))
    assert_near(torch.func.vmap(turned)(angles), torch.stack([turned(x) for x in angles]))
