"""The one entrance to linear attention: checks, feature map and rotation, then an implementation."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from linear_rope.checks import check_base, check_choice
from linear_rope.features.base import FeatureMap
from linear_rope.ops.decay import with_resets
from linear_rope.ops.linear.arguments import check_angles_alone, check_arguments, check_decay_values
from linear_rope.ops.linear.bidirectional import Attended, bidirectional, two_passes
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import reference
from linear_rope.ops.linear.fla import fla
from linear_rope.ops.linear.operator import attend, has_both_ways
from linear_rope.ops.linear.recurrent import State, recurrent
from linear_rope.ops.linear.rotated_features import Denominator, Inputs, Rope, call_of_terms
from linear_rope.ops.linear.rows import per_segment
from linear_rope.ops.linear.terms import Terms, attention_output
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.rotary import rotations
from linear_rope.positions.segments import cut, positions_within, segments_of
from linear_rope.positions.tokens import Positions, check_positions
from linear_rope.positions.xpos import check_rope
from linear_rope.precision import full_precision
from linear_rope.small_calls import cosine_and_sine
from linear_rope.tracing import has_tangent, is_watched

IMPLEMENTATIONS = ("reference", "chunked", "native", "triton", "recurrent", "fla")


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: FeatureMap,
    rope: Rope = "after",
    denominator: Denominator = "unrotated",
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    positions: Positions | None = None,
    rope_base: float = 10000.0,
    rope_scaling: RopeScaling | None = None,
    log_decay: Tensor | None = None,
    angles: Tensor | None = None,
    segment_ids: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    implementation: str = "auto",
) -> Tensor:
    """Linear attention, with rotary positions after the feature map (RoFormer, arXiv 2104.09864, eq. 19).

    With R_m the rotation of position m and φ the feature map, over the keys n that query m sees::

        out_m = Σ_n (R_m φ(q_m))ᵀ (R_n φ(k_n)) v_n  /  Σ_n φ(q_m)ᵀ φ(k_n)

    The weights can be negative and need not sum to one. With a decay, the weight of key n is multiplied by
    Π_{n<t≤m} a_t, above and below; where a query sees later keys too, by Π_{m<t≤n} a_t.

    Args:
        q: (B, H, N, D) queries, any floating dtype.
        k: (B, H, K, D) keys.
        v: (B, H, K, Dv) values.
        feature_map: φ; a module such as ``FavorPlus(D, M, seed=0)`` or ``EluPlusOne()``.
        rope: "after" rotates φ(q) and φ(k); "before" rotates q and k and then maps them, which with FAVOR+ estimates
            softmax attention with RoPE; "none".
        denominator: for ``rope="after"``, "unrotated" is eq. 19, "rotated" sums the numerator's own weights, which
            can come close to zero; "none" divides by nothing. Otherwise "unrotated" and "rotated" are the same.
        causal: query m sees the keys n ≤ m only; needs K = N.
        key_padding_mask: (B, K) bool, True at padding, which has no influence whatever it holds. A query that sees
            no key gives zeros. Queries are not masked: what they hold at padding must be finite.
        positions: (N,) or (B, N), counted from 0, for queries and keys alike, or a pair of these for queries and keys.
            Default: the count of unpadded tokens before each one; the mask counts for the queries too where there are
            as many, so give a pair for two sequences with a mask.
        rope_base: θ_i = rope_base^(−2i/width), with width D before the map and M after it.
        rope_scaling: other angles for sequences longer than those of training, see
            :mod:`linear_rope.positions.rope_scaling`.
        log_decay: (B, H, N) ln a_t ≤ 0, with as many keys as queries; 0 keeps everything, −∞, as all from −1e4 on,
            forgets what came before token t. It counts as 0 at padding. Its values are checked on a CPU, where nothing
            traces the call: a GPU would have to be waited for.
        angles: (B, H, N, width / 2) radians, by which each pair turns in place of its position times θ_i; any axis but
            the last two may be 1. Needs K = N, and neither positions nor rope_scaling.
        segment_ids: (B, N) integers, equal within a segment: sequences that are packed one behind the other. No query
            sees a key of another one, and positions that are not given begin anew in each. Needs K = N.
        cu_seqlens: (K + 1,) int32, the same for B = 1: where each segment begins and, last, where the last one ends.
        implementation: "reference" (quadratic, the definition), "chunked" (linear time), "native" (the same in C++,
            on a CPU, for every dtype), "triton" (the same on a GPU, up to 256 features and values as wide, not in
            float64; not run on a GPU yet, and with TRITON_INTERPRET=1 on a CPU, slowly), "recurrent" (a loop over
            positions with a state of constant size), "fla" (on a GPU, causal, by the kernel of
            :mod:`linear_rope.ops.linear.fla`; not run on a GPU yet), or "auto", which is "native" where
            :func:`linear_rope.kernels` has it, on a GPU "triton" where a trial at the first use proves it
            there, and else "chunked". "native", and "chunked" if causal, keep nothing as
            wide as the features of the built-in maps for their backward pass. They and "triton" can be differentiated
            once, in reverse, as "fla"; the others as often as one likes. In forward mode (``torch.func.jvp``,
            ``torch.autograd.forward_ad``) "auto" is "chunked"; "native", if causal, "triton" and "fla" are refused.
            Without causal, "native" leaves to "chunked" what compilers, function transforms and forward mode follow;
            it and "triton" compute each of the two directions of a decay after a map in PyTorch.

    Returns:
        (B, H, N, Dv) in the dtype of ``v``. Angles, exponentials and sums are float32, or float64 for float64 inputs
        and for a map that needs it, as Taylor's.

    Raises:
        ValueError: shapes, masks, positions, decays, angles or names that do not fit; the message says what would.
    """
    check_arguments(q, k, v, feature_map, causal, key_padding_mask)
    if implementation != "auto" and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose from {', '.join(('auto', *IMPLEMENTATIONS))}")
    check_angles_alone(angles, positions, rope_scaling)
    segments = _segments(segment_ids, cu_seqlens, q, k, key_padding_mask)
    if segments is not None:
        if positions is None and angles is None:
            positions = positions_within(segments, key_padding_mask)
        # Without a decay, what sees both ways has a sum a segment.
        if causal or log_decay is not None or implementation in ("reference", "recurrent", "fla"):
            _check_decay(log_decay, q, k)
            log_decay = cut(log_decay, segments, q.shape[1], torch.promote_types(q.dtype, torch.float32))
    with full_precision(q.device):
        inputs = prepare(
            q,
            k,
            v,
            feature_map=feature_map,
            rope=rope,
            denominator=denominator,
            key_padding_mask=key_padding_mask,
            positions=positions,
            rope_base=rope_base,
            rope_scaling=rope_scaling,
            log_decay=log_decay,
            angles=angles,
        )
        check_decay_values(inputs.log_decay)
        if implementation in ("auto", "chunked", "native", "triton"):
            if causal:
                return attend(inputs.call(), implementation).output.to(v.dtype)
            return both_ways(inputs, implementation, segments).to(v.dtype)
        terms = inputs.terms(causal=causal)
        if implementation == "recurrent" and terms.log_decay is not None and not causal:
            return two_passes(terms, _attend_recurrently).to(v.dtype)
        sums = {"reference": reference, "recurrent": recurrent, "fla": fla}[implementation](terms, causal=causal)
        return attention_output(sums, terms.query_scale).to(v.dtype)


def with_state(inputs: Inputs, before: State | None = None, implementation: str = "auto") -> tuple[Tensor, State]:
    """The causal output after the state ``before``, and the state after the last position."""
    result = attend(after(before, inputs.call()), implementation)
    # What there is not is an empty vector; of no sequences all is empty.
    normaliser, stabiliser = (None if x.dim() == 1 else x for x in (result.normaliser, result.stabiliser))
    return result.output, State(result.memory, normaliser, stabiliser)


def both_ways(inputs: Inputs, implementation: str = "auto", segments: Tensor | None = None) -> Tensor:
    """The output where every query sees every key, of its segment (B, N) if there are any."""
    if segments is not None and inputs.log_decay is None:
        if inputs.q.numel() and not inputs.q.is_meta and not is_watched():
            return per_segment(inputs, segments, lambda rows: both_ways(rows, implementation))
        inputs = replace(inputs, log_decay=cut(None, segments, inputs.q.shape[1], inputs.dtype))
    if inputs.log_decay is None and (implementation == "triton" or _is_plain(inputs, implementation)):
        call = inputs.call()._replace(causal=False, implementation=implementation)
        if has_both_ways(call):
            return attend(call, implementation).output
    terms = inputs.terms(causal=False)
    if terms.log_decay is None:
        return attention_output(bidirectional(terms), terms.query_scale)
    return two_passes(terms, one_pass(inputs.denominator, None, implementation))


def _is_plain(inputs: Inputs, implementation: str) -> bool:
    """Whether what sees both ways is not better computed in PyTorch.

    Compilers fuse that, and function transforms differentiate it as often as one likes.
    """
    is_plain = implementation != "chunked" and not is_watched()
    return is_plain and not has_tangent(inputs.q, inputs.k, inputs.v, inputs.q_rotation, inputs.k_rotation)


def one_pass(denominator: Denominator, before: State | None, implementation: str) -> Callable[[Terms], Attended]:
    """A causal pass over terms after the state ``before``."""

    def run(terms: Terms) -> Attended:
        result = attend(after(before, call_of_terms(terms, denominator)), implementation)
        return Attended(result.output, *(x if x.numel() else None for x in (result.total, result.scale)))

    return run


def after(before: State | None, call: Call) -> Call:
    """The call, after a state. Raises ValueError for that of another feature map, where it can be told."""
    if before is None:
        return call
    check_scale(before, call.has_scale)
    return call._replace(**before._asdict())


def check_scale(state: State, has_scale: bool) -> None:
    """Raises ValueError unless the keys that were summed had a scale as those to come have."""
    if (state.stabiliser is None) == has_scale:
        raise ValueError(
            "state is that of an attention with another feature_map; give one that prefill gave with this one"
        )


def _attend_recurrently(terms: Terms) -> Attended:
    sums = recurrent(terms, causal=True)
    return Attended(attention_output(sums, terms.query_scale), sums.denominator, sums.scale)


def prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: FeatureMap,
    rope: Rope = "after",
    denominator: Denominator = "unrotated",
    key_padding_mask: Tensor | None = None,
    positions: Positions | None = None,
    rope_base: float = 10000.0,
    rope_scaling: RopeScaling | None = None,
    log_decay: Tensor | None = None,
    angles: Tensor | None = None,
) -> Inputs:
    """The inputs of any implementation; the arguments are those of :func:`linear_attention`."""
    check_rope(rope, ("after", "before", "none"))
    check_choice("denominator", denominator, ("unrotated", "rotated", "none"))
    check_base("rope_base", rope_base)
    check_scaling(rope_scaling, rotates=rope != "none")
    check_positions(positions, q, k)
    feature_map.check_width(q)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    dtype = torch.promote_types(dtype, feature_map.precision)
    q_rotation = k_rotation = None
    if rope != "none":
        width = feature_map.count(q.shape[-1]) if rope == "after" else q.shape[-1]
        if rope == "before":
            _check_even(width, "the head dimension", rope, "head_dim")
        else:
            settable = "head_dim" if feature_map.num_features is None else "num_features"
            _check_even(width, "the number of features", rope, settable)
        magnitude = 1.0
        if rope == "before" and rope_scaling is not None:  # queries and keys have one each
            magnitude = math.sqrt(feature_map.score_scale(rope_scaling.magnitude**2))
        if angles is not None:
            q_rotation = k_rotation = _given_rotation(angles, q, k, width, dtype)
        else:
            q_rotation, k_rotation = rotations(
                q,
                k,
                positions,
                key_padding_mask,
                width=width,
                base=rope_base,
                dtype=dtype,
                scaling=rope_scaling,
                magnitude=magnitude,
            )
    elif angles is not None:
        raise ValueError('angles were given, but rope is "none"; give rope="after" or "before", or no angles')
    _check_decay(log_decay, q, k)
    if log_decay is not None and key_padding_mask is not None:
        log_decay = log_decay.masked_fill(key_padding_mask[:, None], 0)
    padding = None
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, :, None]
        # Before the map: what padding holds, also infinity, must reach neither an output nor a gradient.
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    log_decay = None if log_decay is None else with_resets(log_decay)
    return Inputs(q, k, v, feature_map, rope, denominator, dtype, padding, q_rotation, k_rotation, log_decay)


def _given_rotation(angles: Tensor, q: Tensor, k: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    batch, heads, length, _ = q.shape
    if k.shape[2] != length:
        raise ValueError(
            f"angles was given, but there are {length} queries and {k.shape[2]} keys, which cannot turn alike; give "
            "positions, a pair"
        )
    if (
        not isinstance(angles, Tensor)
        or angles.dim() != 4
        or angles.shape[2:] != (length, width // 2)
        or any(given not in (1, needed) for given, needed in zip(angles.shape[:2], (batch, heads), strict=True))
    ):
        came = tuple(angles.shape) if isinstance(angles, Tensor) else type(angles).__name__
        raise ValueError(f"angles is {came}; give radians of shape ({batch}, {heads}, {length}, {width // 2})")
    if not angles.is_floating_point():
        raise ValueError(f"angles has dtype {angles.dtype}; give floating-point radians")
    return cosine_and_sine(angles).to(dtype)


def _segments(
    segment_ids: Tensor | None, cu_seqlens: Tensor | None, q: Tensor, k: Tensor, key_padding_mask: Tensor | None
) -> Tensor | None:
    if (segment_ids is not None or cu_seqlens is not None) and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"segments were given, but there are {q.shape[2]} queries and {k.shape[2]} keys, which are in none together"
        )
    return segments_of(segment_ids, cu_seqlens, q[:, 0], key_padding_mask)


def _check_decay(log_decay: Tensor | None, q: Tensor, k: Tensor) -> None:
    if log_decay is None:
        return
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"log_decay was given, but there are {q.shape[2]} queries and {k.shape[2]} keys, which are not on one "
            "axis to fade along; give no log_decay"
        )
    if not isinstance(log_decay, Tensor) or log_decay.shape != q.shape[:3] or not log_decay.is_floating_point():
        came = tuple(log_decay.shape) if isinstance(log_decay, Tensor) else type(log_decay).__name__
        raise ValueError(f"log_decay is {came}; give a floating-point tensor of shape {tuple(q.shape[:3])}, ln a ≤ 0")


def _check_even(width: int, what: str, rope: str, argument: str) -> None:
    if width % 2:
        raise ValueError(
            f'rope="{rope}" rotates pairs, but {what} is {width}; give an even {argument}, such as {width + 1}'
        )
