"""What the attention modules compute, pair by pair, with all that they add; and how that begins.

Padding, decoding, segments and gradients by differences of the same are in test_contracts.py.
"""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from linear_rope import EluPlusOne, LinearRoPEAttention, SoftmaxRoPEAttention, apply_rope
from linear_rope.attention import GatedDelta, Retention, WindowedFavor
from linear_rope.attention.convolution import ShortConvolution
from linear_rope.attention.head_norm import HeadNorm
from linear_rope.features import FEATURE_MAPS, RANDOM_MAPS
from linear_rope.ops.delta.definition import delta_reference
from linear_rope.ops.window.definition import windowed_reference
from linear_rope.positions import Decay, FixedDecay, GatedDecay, SelectiveRotation
from linear_rope.positions.decay import make_decay
from linear_rope.positions.rotary import rope_frequencies
from linear_rope.positions.selective import SelectiveAngles
from tests.linear_rope.attention.modules import ALL, DIM, GATED, KERNELS, PAPER, SELECTIVE, made
from tests.linear_rope.ops.linear.test_linear_attention import between, faded_products
from tests.linear_rope.tensors import (
    HEADS,
    SCALINGS,
    D,
    assert_identical,
    assert_near,
    in_steps,
    partly_turned,
    random,
    some_padding,
)

CAUSAL = pytest.mark.parametrize("causal", [True, False])


def heads_of(part: nn.Module, x: Tensor) -> Tensor:
    """(B, N, dim) → (B, H, N, D)."""
    return part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)


def normed(x: Tensor, norm: Any) -> Tensor:
    return x if norm is None else x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.gain[:, None, None]


def by_hand(
    module: Any, x: Tensor, context: Tensor | None = None, padding: Tensor | None = None, at: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """RoFormer's eq. 16, and 19 with a rotation after the map, before it or none: the output and the weights."""
    source = x if context is None else context
    padding = torch.zeros(source.shape[:2], dtype=torch.bool) if padding is None else padding
    source = source.masked_fill(padding.unsqueeze(-1), 0)
    counted = ((~padding).cumsum(-1) - 1).clamp(min=0)
    q, k, v = (heads_of(part, y) for part, y in ((module.query, x), (module.key, source), (module.value, source)))
    if module.short is not None:
        together = torch.cat([part(source) for part in (module.query, module.key, module.value)], dim=-1)
        together = together.masked_fill(padding.unsqueeze(-1), 0)
        together = together + module.short(together, padding)
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in together.chunk(3, dim=-1))
    added = 0
    if module.local is not None:
        values = v.transpose(1, 2).flatten(2).masked_fill(padding.unsqueeze(-1), 0)
        added = module.local(values, padding)
    q, k = normed(q, module.query_norm), normed(k, module.key_norm)

    def turned(y: Tensor) -> Tensor:
        options = {"base": module.rope_base, "scaling": module.rope_scaling}
        return partly_turned(y, counted if at is None else at, module.rope_fraction, **options)

    decay = None if module.decay is None else module.decay(source)
    pairs = mean = None
    if decay is not None:
        decay = decay.masked_fill(padding.view(len(x), 1, -1, *[1] * (decay.dim() - 3)), 0)
        if decay.dim() == 4:
            pairs, decay = decay, None
            mean = pairs.mean(-1, keepdim=True) if module.pair_denominator == "head" else pairs

    def cosines(a: Tensor, b: Tensor) -> Tensor:
        """Σ_c a_c b_c cos((m − n)·θ_c + φ_c)."""
        place = (counted if at is None else at).expand(len(x), -1)
        distance = (place[:, None, :, None] - place[:, None, None, :]).double().unsqueeze(-1)
        phase = 0 if module.phase is None else module.phase.view(HEADS, 1, 1, -1)
        angles = distance * rope_frequencies(2 * a.shape[-1], base=module.rope_base) + phase
        return (a.unsqueeze(-2) * b.unsqueeze(-3) * angles.cos()).sum(-1)

    if module.rope == "before":
        q, k = turned(q), turned(k)
    if module.rope == "pope":
        above = below = (cosines(F.softplus(q), F.softplus(k)) / math.sqrt(D)).exp()
    elif isinstance(module, SoftmaxRoPEAttention):
        scale = 1 if module.rope_scaling is None else module.rope_scaling.magnitude**2
        above = below = (scale * q @ k.mT / math.sqrt(D)).exp()
    else:
        q, k = module.feature_map(q), module.feature_map(k)
        below = faded_products(q, k, mean)
        if module.phase is not None and module.feature_map.paired:
            above = 2 * cosines(q[..., ::2], k[..., ::2])
        else:
            q, k = (turned(q), turned(k)) if module.rope == "after" else (q, k)
            above = faded_products(q, k, pairs)
    if getattr(module, "alibi", False):
        place = (counted if at is None else at).expand(len(x), -1)
        distance = (place[:, None, :, None] - place[:, None, None, :]).abs()
        above = below = above * (-torch.tensor([2**-4, 2**-8]).double()[:, None, None] * distance).exp()
    seen = (~padding[:, None, None]).to(above.dtype)
    if module.causal:
        seen = seen * torch.ones(x.shape[1], source.shape[1]).tril()
    if getattr(module, "window", None) is not None:
        seen = seen * (counted[:, None, :, None] - counted[:, None, None] < module.window)
    if decay is not None:
        seen = seen * between(decay).exp()
    total = 1 if getattr(module, "denominator", "") == "none" else (below * seen).sum(-1, keepdim=True)
    if getattr(module, "denominator", "") == "abs":
        total = (above * seen).sum(-1, keepdim=True).abs().clamp(min=1)
    weights = above * seen / total
    y = weights @ v
    if module.output_norm is not None:
        y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        y = y if module.output_norm.gain is None else y * module.output_norm.gain
    y = y.transpose(1, 2).flatten(2) + added
    if module.gate is not None:
        gate = module.gate(x)
        y = y * gate.sigmoid() * (1 if module.output_gate == "sigmoid" else gate)
    return module.out(y), weights


FORMULAS: list[tuple[str, dict[str, Any]]] = [
    *(("softmax", options) for options in ({}, {"rope": "none"}, {"rope": "none", "alibi": True})),
    *(("softmax", {"rope": rope, "qk_norm": True, "decay": "alibi"}) for rope in ("before", "none")),
    ("softmax", {"rope_scaling": SCALINGS["yarn"], "bias": True}),
    *(("softmax", {"rope": "pope", "rope_phase": phase}) for phase in ("none", "learned")),
    ("elu+1", {"feature_map": "elu+1+paired", "rope_phase": "learned", "decay": "retnet"}),
    *(("softmax", {"window": window, "decay": "retnet"}) for window in (1, 7, 40)),
    ("softmax", {"rope_scaling": SCALINGS["yarn"], "rope_fraction": 0.5}),
    *(("favor+", {"rope": rope, "rope_fraction": 0.6}) for rope in ("after", "before")),
    *(("favor+", {"rope": rope, "qk_norm": True}) for rope in ("after", "before", "none")),
    ("favor+", {"rope": "before", "denominator": "none", "head_dim": 6, "num_features": 10, "seed": 5, "bias": True}),
    *(("elu+1", {"rope": rope, "qk_norm": True, "decay": "retnet"}) for rope in ("after", "before", "none")),
    *(("elu+1", {"rope": rope, "decay": "pair"}) for rope in ("after", "before", "none")),
    *(("favor+", {"decay": "pair", "pair_denominator": "head", "rope": rope}) for rope in ("after", "none")),
    *(("elu+1", {"decay": "pair-fixed", "denominator": name, "local_conv": 4}) for name in ("none", "abs")),
    ("retention", {"decay": "pair"}),
    *((kernel, {"denominator": "abs", "decay": "retnet"}) for kernel in ("favor+", "elu+1")),
    ("elu+1", {"denominator": "abs", "bias": True}),
    *((kernel, {"short_conv": 3, "local_conv": 4, "qk_norm": True}) for kernel in ("softmax", "favor+", "elu+1")),
    *(("retention", {"activation": name, "short_conv": 4}) for name in ("identity", "silu")),
    *((kernel, GATED | {"local_conv": 4}) for kernel in ("softmax", "favor+", "elu+1")),
    *((kernel, {"output_gate": "sigmoid"}) for kernel in ("softmax", "retention")),
    ("retention", GATED),
]


@pytest.mark.parametrize(
    ("kernel", "options", "causal"),
    [(*each, causal) for each in FORMULAS for causal in (True, False) if causal or "window" not in each[1]],
)
def test_outputs_and_gradients_are_the_formula(kernel: str, options: dict[str, Any], causal: bool) -> None:
    module, padding = made(kernel, causal=causal, rope_base=100.0, **options), some_padding(2, 33)
    x, there = random(2, 33, DIM).requires_grad_(), ~padding.unsqueeze(-1)
    leaves, upstream = [x, *module.parameters()], random(2, 33, DIM, seed=99)
    found = []
    for y in (module(x, key_padding_mask=padding), by_hand(module, x, padding=padding)[0]):
        # One scale for all: without an activation the gains of retention cancel, and so may others nearly.
        gradients = torch.autograd.grad(y * there, leaves, upstream, allow_unused=True, materialize_grads=True)
        found.append([y * there, torch.cat([gradient.flatten() for gradient in gradients])])
    assert_near(*found)


@CAUSAL
@pytest.mark.parametrize(
    ("kernel", "options"), [each for each in FORMULAS if not {"short_conv", "decay"} & each[1].keys()]
)
def test_weights_are_the_formula_at_given_positions(kernel: str, options: dict[str, Any], causal: bool) -> None:
    module, x, counted = made(kernel, causal=causal, **options), random(2, 9, DIM), torch.arange(9)
    for positions in (2 * counted, torch.stack((counted, 3 * counted + 50))):
        y, weights = by_hand(module, x, at=positions)
        assert_near(module(x, positions=positions), y)
        assert_near(module.attention_weights(x, positions=positions), weights)


@pytest.mark.parametrize("kernel", ["softmax", "favor+", "elu+1", "hedgehog", "taylor"])
def test_a_context_is_read_at_once_or_remembered(kernel: str) -> None:
    x, context, padding = random(2, 5, DIM), random(2, 9, DIM, seed=1), some_padding(2, 9)
    every: list[dict[str, Any]] = [GATED, {"qk_norm": True, "output_gate": "sigmoid"}]
    for options in [*every, {"denominator": "abs"}][: 2 if kernel == "softmax" else 3]:
        module = made(kernel, causal=False, rope="none", **options)
        expected = by_hand(module, x, context, padding)[0]
        held = context.masked_fill(padding.unsqueeze(-1), torch.nan)
        assert_near(module(x, held, padding), expected)
        assert_near(module.recall(x, module.remember(held, padding)), expected)
        assert expected.all()  # the padding of a context hides no query
        # A query sees the context only, not the other queries, and is where it is said to be.
        rotated = made(kernel, causal=False, **options)
        places = torch.arange(2, 5), torch.arange(9)
        assert_near(rotated(x[:, 2:], context, positions=places), rotated(x, context)[:, 2:])
        assert (rotated(x, 2 * context) - rotated(x, context)).abs().max() > 1e-3
    few = made(kernel, causal=False, rope="none", kv_heads=1)
    memory = few.remember(held, padding)
    assert memory[0].shape[1] == 1
    assert_near(few.recall(x, memory), few(x, held, padding))


@pytest.mark.parametrize("beta_range", ["one", "two"])
@pytest.mark.parametrize(
    ("rope", "decay"),
    [("after", "gate"), ("none", "gate"), ("none", "channel"), ("after", "pair"), ("none", "pair-fixed")],
)
def test_the_gated_delta_rule_is_its_formula(rope: str, decay: str, beta_range: str) -> None:
    module, x = made("delta", rope=rope, decay=decay, beta_range=beta_range, **GATED), random(2, 70, DIM)
    q, k, v = (heads_of(part, x) for part in (module.query, module.key, module.value))
    q, k = (each / each.norm(dim=-1, keepdim=True) for each in (q, k))
    if rope == "after":
        q, k = (apply_rope(each, torch.arange(70)) for each in (q, k))
    log_decay = module.decay(x).repeat_interleave(2 if decay.startswith("pair") else 1, dim=-1)
    assert (log_decay.shape[-1] == D) == (decay != "gate")
    beta = module.rate(x).sigmoid().mT * (2 if beta_range == "two" else 1)
    y, _ = delta_reference(q, k, v, beta, log_decay)
    y = F.rms_norm(y.transpose(1, 2), (D,), module.output_norm.gain, eps=1e-6)
    assert_near(module(x), module.out(y.flatten(2) * F.silu(module.gate(x))))
    # With β = 1 and no decay, the value under a key is the last one: reading with that key gives it back.
    module = made("delta", rope="none", decay="none")
    projected = module.project(x, x)
    key = projected.k[:, :, :1].expand_as(projected.k)
    told = projected._replace(q=key, k=key, rate=torch.ones_like(projected.rate))
    assert_near(module._attend(told), projected.v)
    # A norm changes nothing and adds nothing.
    same = GatedDelta(DIM, HEADS, rope="none", decay="none", qk_norm=True).double()
    same.load_state_dict(module.state_dict(), strict=True)
    assert_identical(same(x), module(x))
    # A decay of channels can be one's own.
    own, named = (
        GatedDelta(DIM, HEADS, rope="none", decay=decay).double()
        for decay in (GatedDecay(DIM, HEADS, pairs=D), "channel")
    )
    own.load_state_dict(named.state_dict(), strict=True)
    assert_identical(own(x), named(x))


class Resets(Decay):
    """Keeps 0.8, and nothing at every eleventh token."""

    def forward(self, x: Tensor) -> Tensor:
        log_decay = x.new_full((x.shape[0], self.heads, x.shape[1]), math.log(0.8))
        return log_decay.masked_fill(torch.arange(x.shape[1]) % 11 == 7, -torch.inf)


@pytest.mark.parametrize("options", [{"rope": "none"}, {"decay": "gate"}, {"decay": Resets(2)}])
@pytest.mark.parametrize(("length", "window"), [(1, 4), (17, 4), (17, 32), (130, 32), (257, 1)])
def test_an_exact_window_and_the_remainder_are_their_definition(
    length: int, window: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    module = WindowedFavor(16, 2, **options, window=window, num_features=8).double()
    x = random(2, length, 16).requires_grad_()

    def definition(x: Tensor) -> Tensor:
        projected = module.project(x, x)
        q, k, *_ = module._sequence(projected, None)
        mapped = module.feature_map(q), module.feature_map(k)
        return module._merge(windowed_reference(q, k, projected.v, *mapped, window, projected.log_decay), projected)

    found = []
    for of in (module, definition):
        y = of(x)
        gradients = torch.autograd.grad(y, [x, *module.parameters()], random(*y.shape, seed=9))
        # One scale: where there is one token, those of queries and keys are zero but for rounding.
        found.append([y, torch.cat([gradient.flatten() for gradient in gradients])])
    assert_near(*found)


@CAUSAL
def test_a_convolution_is_the_weighted_sum_of_the_neighbours_that_are_no_padding(causal: bool) -> None:
    width, convolution = 3, ShortConvolution(3, 3, causal=causal).double()
    with torch.no_grad():
        convolution.weight.copy_(random(*convolution.weight.shape, seed=1))
    x, padding = random(2, 11, 3), some_padding(2, 11)
    y = convolution(x.masked_fill(padding.unsqueeze(-1), 0), padding)
    assert not y[padding].any()
    for sequence, mask, found in zip(x, padding, y, strict=True):
        kept = sequence[~mask]
        for at, actual in enumerate(found[~mask]):
            neighbours = range(at - width + 1, at + 1 if causal else at + width)
            terms = [convolution.weight[:, place] * kept[n] for place, n in enumerate(neighbours) if 0 <= n < len(kept)]
            assert_near(actual, torch.stack(terms).sum(0))


@pytest.mark.parametrize("rank", [None, 3])
def test_selective_angles_of_the_paper_are_its_formula(rank: int | None) -> None:
    """Token by token, as its code has it, from weights as they begin: a bias of zero is a speed of one."""
    torch.manual_seed(0)
    settings = SelectiveRotation(rank=rank, bias=True, gate=True, init="paper")
    module: Any = LinearRoPEAttention(DIM, HEADS, feature_map="elu+1", causal=True, rope_angles=settings).double()
    x, pairs = random(1, 9, DIM), DIM // HEADS // 2
    angles = module.project(x, x).angles
    weights = [w.detach() for w in module.rotation.projections]
    gate, kernel = module.rotation.gate.detach(), module.rotation_convolution.weight.detach()
    assert kernel.std() > 0

    def usual(weight: Tensor) -> Tensor:  # of the variance with which PyTorch's layers begin
        return weight / (0.02 * math.sqrt(3 * weight.shape[1]))

    phi, phase, frequencies = [], torch.zeros(HEADS, pairs, dtype=torch.float64), rope_frequencies(2 * pairs)
    for t in range(9):
        token = F.normalize(x[0, t].view(HEADS, -1), dim=-1)
        if rank is None:
            columns = F.normalize(weights[0].view(HEADS, pairs, -1), dim=-1)
            phi.append((columns * token[:, None]).sum(-1).flatten())
        else:
            phi.append(usual(weights[1]) @ usual(weights[0]) @ token.flatten())
        last = [phi[s] if s >= 0 else torch.zeros_like(phi[0]) for s in range(t - 3, t + 1)]
        speed = (torch.stack(last, dim=-1) * usual(kernel)).sum(-1).view(HEADS, pairs) + 1
        phase = phase + speed * (usual(gate) @ token.flatten()).sigmoid()[:, None]
        assert_near(angles[0, :, t].cos(), (phase * frequencies).cos())


@pytest.mark.parametrize("settings", [SelectiveRotation(), SELECTIVE])
def test_selective_angles_begin_near_rope_and_are_it_without_their_projections(settings: SelectiveRotation) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"feature_map": "elu+1", "causal": True}
    module, plain = (LinearRoPEAttention(DIM, HEADS, rope_angles=angles, **options) for angles in (settings, "fixed"))
    # Weights of 0.02 change a speed of 1 by a few hundredths.
    phase = module.prefill(torch.randn(2, 100, DIM))[1].carried.phase
    assert ((phase - 100).abs() < 10).all()
    rotation: Any = module.rotation
    with torch.no_grad():
        rotation.projections[-1].zero_()
        if rotation.gate is not None:
            rotation.gate.zero_()
    plain.load_state_dict({name: x for name, x in module.state_dict().items() if not name.startswith("rotation")})
    x = random(2, 70, DIM)
    assert_near(module.double()(x), plain.double()(x))


def test_selective_angles_are_as_precise_after_many_tokens() -> None:
    """After 50,000 speeds near 1 a sum in float32 has steps of 0.004; an angle below 2π has steps of 5e-7."""
    torch.manual_seed(0)
    angles, x = SelectiveAngles(SelectiveRotation(), DIM, HEADS, 4, 10_000.0), torch.randn(1, 50_000, DIM)
    speed = angles.inputs(x)
    phase = (speed + 1).double().cumsum(1).view(1, -1, HEADS, 2).transpose(1, 2)
    found = angles(x, speed, None, None)[0]
    exact = phase * torch.tensor([1.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(found.double().cos(), exact.cos(), rtol=0, atol=5e-7)


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """Off by the rounding to the dtype of ``found``, and a thousandth of it for float32's before."""
    limits = torch.finfo(found.dtype)
    allowed = 1.001 * limits.eps / 2 * exact.abs().clamp(min=limits.smallest_normal)
    assert ((found.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("kernel", ["softmax", "favor+", "elu+1"])
def test_angles_decays_and_norms_keep_their_precision_under_autocast(kernel: str) -> None:
    module = made(kernel, decay="gate", rope_angles=SelectiveRotation(bias=True, gate=True), qk_norm=True).float()
    x, low = random(2, 300, DIM).float(), random(2, 300, DIM).bfloat16()
    for tokens in (x, low):
        expected = module.project(tokens.float(), tokens.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = module.project(tokens, tokens)
            q, k = heads_of(module.query, tokens), heads_of(module.key, tokens)
        for name in ("angles", "log_decay"):
            assert getattr(found, name).dtype == torch.float32
            assert_near(getattr(found, name), getattr(expected, name), 1e-5)
        for after, one, norm in ((found.q, q, module.query_norm), (found.k, k, module.key_norm)):
            assert after.dtype == one.dtype == torch.bfloat16
            assert_rounded(after, normed(one.double(), norm.double()))
            norm.float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_is_computed_in_float32_at_least(dtype: torch.dtype) -> None:
    norm = HeadNorm(HEADS, 0.5).to(dtype)  # a gain that both types hold
    # Squares of 30,000 are more than float16 holds.
    x = (random(2, HEADS, 9, 300) * 30_000).clamp(-60_000, 60_000).to(dtype)
    assert norm(x).dtype == dtype
    assert_rounded(norm(x), normed(x.double(), norm.double()))


class Shorter(EluPlusOne):
    """A map of one's own."""

    initial_gain = 0.5


def test_gains_begin_as_the_feature_map_says_and_phases_with_none() -> None:
    gains = dict.fromkeys(FEATURE_MAPS, 1.0) | dict.fromkeys(RANDOM_MAPS, 0.35)
    modules: list[tuple[Any, float]] = [
        (LinearRoPEAttention(DIM, HEADS, feature_map=name, rope="none", qk_norm=True), gain)
        for name, gain in gains.items()
    ]
    modules += [(LinearRoPEAttention(DIM, HEADS, feature_map=Shorter(), qk_norm=True), 0.5)]
    modules += [(kernel(DIM, HEADS, qk_norm=True), 1.0) for kernel in (SoftmaxRoPEAttention, Retention)]
    modules += [(WindowedFavor(DIM, HEADS, qk_norm=True), 0.35)]
    for module, gain in modules:
        for norm in (module.query_norm, module.key_norm):
            assert_identical(norm.gain.detach(), torch.full((HEADS,), gain))
    for module in (
        SoftmaxRoPEAttention(DIM, HEADS, rope="pope", rope_phase="learned"),
        LinearRoPEAttention(DIM, HEADS, rope_phase="learned"),
    ):
        assert not module.phase.any()


def test_gates_and_fixed_decays_begin_as_they_say() -> None:
    x = torch.zeros(1, 3, DIM)
    kept = GatedDecay(DIM, 4)(x).exp()
    torch.testing.assert_close(kept[0, :, 0], 1 - torch.tensor([2, 11 / 3, 16 / 3, 7]).neg().exp2())
    torch.testing.assert_close(GatedDecay(DIM, 4, temperature=16)(x).exp(), kept)
    for name in ("pair", "pair-fixed"):
        of_pairs: Any = make_decay(name, DIM, 4, 3)
        expected = 1 - torch.tensor([1, 4, 7]).neg().exp2()
        torch.testing.assert_close(of_pairs(x).exp(), expected.expand(1, 4, 3, 3))
    shares = {
        "fixed": 1 - torch.tensor([1, 3, 5, 7]).neg().exp2(),
        "alibi": torch.tensor([2, 4, 6, 8]).neg().exp2().neg().exp(),
        "retnet": 1 - torch.tensor([5, 6, 7, 8]).neg().exp2(),
    }
    for name, expected in shares.items():
        decay: Any = make_decay(name, DIM, 4)
        torch.testing.assert_close(decay(x).exp(), expected.view(1, 4, 1).expand(1, 4, 3))
    module = made("elu+1", decay=FixedDecay(torch.tensor([-0.5, -torch.inf])))
    assert module(random(1, 5, DIM)).isfinite().all()


ALONG = [{name: value} for name, value in ALL.items()] + [ALL, {"rope_angles": PAPER}]


@pytest.mark.parametrize("kernel", ["softmax", "favor+", "elu+1"])
def test_a_context_is_refused_by_what_goes_along_one_sequence(kernel: str) -> None:
    for options in ALONG:
        module = made(kernel, causal=False, **options)
        with pytest.raises(ValueError, match=r"^context was given, but .* make it without$") as error:
            module(random(2, 3, DIM), context=random(2, 3, DIM))
        assert {name for name in ALL if name in str(error.value)} == set(options)


def test_dropout_acts_in_training_or_where_it_is_switched_on() -> None:
    """As for Monte Carlo dropout."""
    module, x = made("favor+", dropout=0.5), random(1, 5, DIM)
    assert not module(x).all()
    module.eval()
    assert module(x).all()
    assert_identical(module(x), module(x))
    module.dropout.train()
    assert not torch.equal(module(x), module(x))


def test_a_cache_is_not_copied_at_each_token_and_two_go_on_from_one_state() -> None:
    module, x = made("softmax"), random(2, 40, DIM)

    def steps(state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        outputs = []
        for token in tokens.split(1, dim=1):
            y, state = module.step(token, state)
            places.add((state.k.data_ptr(), state.v.data_ptr()))
            outputs.append(y)
        return torch.cat(outputs, dim=1), state

    places: set[tuple[int, int]] = set()
    with torch.no_grad():
        steps(module.prefill(x[:, :10])[1], x[:, 10:])
        assert len(places) == 2  # room for 22, then for 46
        _, shared = steps(module.prefill(x[:, :5])[1], x[:, 5:6])
        one, of_one = steps(shared, x[:, 6:20])
        other, _ = steps(shared, x[:, 20:34])
        again, _ = steps(of_one, x[:, 34:])
    assert_near(one, module(x[:, :20])[:, 6:], 1e-12)
    assert_near(other, module(torch.cat((x[:, :6], x[:, 20:34]), dim=1))[:, 6:], 1e-12)
    assert_near(again, module(torch.cat((x[:, :20], x[:, 34:]), dim=1))[:, 20:], 1e-12)
    # A state of inference mode goes on outside it.
    with torch.inference_mode():
        _, state = steps(module.prefill(x[:, :5])[1], x[:, 5:8])
    with torch.no_grad():
        assert_near(steps(state, x[:, 8:])[0], module(x)[:, 8:], 1e-12)


GROUPED: list[tuple[str, dict[str, Any]]] = [
    *(("softmax", options) for options in ({}, {"alibi": True, "rope": "none"}, {"window": 5, "decay": "gate"})),
    ("softmax", {"rope": "none", "score_positions": "shaw"}),
    ("softmax", {"rope": "pope", "rope_phase": "learned"}),
    ("elu+1", {"decay": "pair", "rope_phase": "learned"}),
    ("delta", {"decay": "channel", "rope": "none"}),
    *((kernel, {"decay": "gate"}) for kernel in KERNELS),
    *(("elu+1", {"denominator": denominator}) for denominator in ("none", "abs")),
]


@pytest.mark.parametrize(("kernel", "options"), GROUPED)
def test_grouped_queries_are_as_many_heads_with_the_same_keys_and_values(kernel: str, options: dict[str, Any]) -> None:
    """With 6 heads of queries and 2 of keys, convolutions and norms; whole, in steps, and of another sequence."""
    sizes = {"heads": 6, "head_dim": D, "bias": True} | options
    sizes |= {"qk_norm": True, "short_conv": 3, "local_conv": 4} | GATED
    grouped, whole = made(kernel, kv_heads=2, **sizes), made(kernel, **sizes)
    weights = grouped.state_dict()
    for name, wanted in whole.state_dict().items():
        x, parts = weights[name], 1
        if name == "short.weight":  # of queries, keys and values
            x, parts = x[6 * D :], 2
        if wanted.shape != weights[name].shape:
            repeated = x.unflatten(0, (parts, 2, -1)).repeat_interleave(3, dim=1).flatten(0, 2)
            weights[name] = torch.cat((weights[name][: len(wanted) - len(repeated)], repeated))
    if grouped.decay is not None:
        start = torch.tensor(grouped.decay.start, dtype=torch.float64).unflatten(0, (2, -1))
        whole.decay.start = start.repeat_interleave(3, dim=0).flatten().tolist()
    whole.load_state_dict(weights)
    x = random(2, 20, DIM)
    assert_near(grouped(x), whole(x))
    assert_near(in_steps(grouped, x, 13), whole(x))
    shapes = [part.shape for part in tree_leaves(grouped.prefill(x)[1]) if isinstance(part, Tensor) and part.dim() > 2]
    assert all(shape[1] in (2, 3) for shape in shapes)
