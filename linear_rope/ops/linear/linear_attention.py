"""The one entrance to linear attention: checks, feature map and rotation, then an implementation."""

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap
from linear_rope.ops.linear import native, triton_form
from linear_rope.ops.linear.both_ways import both_ways, recurrent_pass, two_passes
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.definition import attention_output, finished, reference
from linear_rope.ops.linear.operator import attend
from linear_rope.ops.linear.prepare import (
    Rotation,
    check_angles_alone,
    check_arguments,
    check_decay,
    check_decay_values,
    prepare,
)
from linear_rope.ops.linear.rotated_features import Denominator, PairDenominator, Rope, mapped
from linear_rope.ops.linear.state import recurrent
from linear_rope.ops.linear.triton_form import proof
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.rotary import BASE, Turn
from linear_rope.positions.segments import cut, positions_within, segments_of
from linear_rope.positions.tokens import Positions
from linear_rope.precision import full_precision

IMPLEMENTATIONS = ("reference", "chunked", "native", "triton", "recurrent")


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
    rope_base: float = BASE,
    rope_scaling: RopeScaling | None = None,
    rope_fraction: float = 1.0,
    log_decay: Tensor | None = None,
    angles: Tensor | None = None,
    pair_denominator: PairDenominator = "same",
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
            can come close to zero; "none" divides by nothing; "abs" by max(|Σ w|, 1), w the numerator's own weights
            (mLSTM, arXiv 2405.04517; RetNet, arXiv 2307.08621). Otherwise "unrotated" and "rotated" are the same.
        causal: query m sees the keys n ≤ m only; needs K = N.
        key_padding_mask: (B, K) bool, True at padding, which has no influence whatever it holds. A query that sees
            no key gives zeros. Queries are not masked: what they hold at padding must be finite.
        positions: (N,) or (B, N), counted from 0, for queries and keys alike, or a pair of these for queries and keys.
            Default: the count of unpadded tokens before each one; the mask counts for the queries too where there are
            as many, so give a pair for two sequences with a mask.
        rope_base: θ_i = rope_base^(−2i/width), with width D before the map and M after it.
        rope_scaling: other angles for sequences longer than those of training, see
            :mod:`linear_rope.positions.rope_scaling`.
        rope_fraction: share of the width whose pairs, the first ones, are rotated, in (0, 1]: the even number nearest
            to it, at least 2, is the width in θ_i.
        log_decay: (B, H, N) ln a_t ≤ 0, with as many keys as queries; 0 keeps everything, −∞, as all from −1e4 on,
            forgets what came before token t. It counts as 0 at padding. Its values are checked on a CPU, where nothing
            traces the call: a GPU would have to be waited for. Or (B, H, N, M / 2), ln a_{t,p} of each pair of
            features, which are those that are rotated after the map: each product of two pairs fades by its own.
        pair_denominator: with decays of pairs, whether an unrotated denominator fades by the "same", or by one a
            "head", exp of the mean of ln a_{t,p} over the pairs.
        angles: (B, H, N, width / 2) radians, by which each pair turns in place of its position times θ_i; any axis but
            the last two may be 1. Needs K = N, and no positions, rope_scaling and rope_fraction.
        segment_ids: (B, N) integers, equal within a segment: sequences that are packed one behind the other. No query
            sees a key of another one, and positions that are not given begin anew in each. Needs K = N.
        cu_seqlens: (K + 1,) int32, the same for B = 1: where each segment begins and, last, where the last one ends.
        implementation: "reference" (quadratic, the definition), "chunked" (linear time), "native" (the same in C++,
            on a CPU, for every dtype), "triton" (the same on a GPU, up to 256 features and values as wide, not in
            float64; not run on a GPU yet, and with TRITON_INTERPRET=1 on a CPU, slowly), "recurrent" (a loop over
            positions with a state of constant size), or "auto", which is "native" where :func:`linear_rope.kernels`
            has it, on a GPU "triton" where a trial at the first use proves it there, and else "chunked". "native", and
            "chunked" if causal or with a decay, keep nothing as wide as the features of the built-in maps for their
            backward pass. They and "triton" can be differentiated once, in reverse; the others as often as one likes.
            In forward mode (``torch.func.jvp``, ``torch.autograd.forward_ad``) "auto" is "chunked"; "native", if causal
            or with a decay, and "triton" are refused.
            Without causal, "native" leaves to "chunked" what compilers, function transforms and forward mode follow;
            it and "triton" compute each of the two directions of a decay after a map in PyTorch. With decays of pairs
            "auto" is never "triton", which has them.

    Returns:
        (B, H, N, Dv) in the dtype of ``v``. Angles, exponentials and sums are float32, or float64 for float64 inputs
        and for a map that needs it, as Taylor's.

    Raises:
        ValueError: shapes, masks, positions, decays, angles or names that do not fit; the message says what would.
    """
    check_arguments(q, k, v, feature_map, causal, key_padding_mask)
    if implementation != "auto" and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose from {', '.join(('auto', *IMPLEMENTATIONS))}")
    turn = Turn(q.shape[-1], rope_base, rope_scaling, rope_fraction)
    check_angles_alone(angles, positions, turn)
    if (segment_ids is not None or cu_seqlens is not None) and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"segments were given, but there are {q.shape[2]} queries and {k.shape[2]} keys, which are in none together"
        )
    segments = segments_of(segment_ids, cu_seqlens, q.transpose(1, 2), key_padding_mask)
    if segments is not None:
        if positions is None and angles is None:
            positions = positions_within(segments, key_padding_mask)
        # Without a decay, what sees both ways has a sum a segment.
        if causal or log_decay is not None or implementation in ("reference", "recurrent"):
            check_decay(log_decay, q, k, feature_map)
            log_decay = cut(log_decay, segments, q.shape[1], torch.promote_types(q.dtype, torch.float32))
    call = Call(q, k, v, log_decay=log_decay, denominator=denominator, causal=causal, feature_map=feature_map)
    with full_precision(q.device):
        call = prepare(call, key_padding_mask, positions, Rotation(rope, turn, angles), pair_denominator)
        check_decay_values(call.log_decay)
        if implementation in ("auto", "chunked", "native", "triton"):
            y = attend(call, implementation).output if causal else both_ways(call, implementation, segments)
            return finished(y, denominator).to(v.dtype)
        call = mapped(call)
        if implementation == "recurrent" and call.log_decay is not None and not causal:
            return finished(two_passes(call, recurrent_pass), denominator).to(v.dtype)
        sums = reference(call) if implementation == "reference" else recurrent(call)
        return finished(attention_output(sums, call.query_scale), denominator).to(v.dtype)


def kernels() -> dict[str, str]:
    """What computes linear attention here, by the names that ``implementation`` takes.

    Returns:
        "native": the kernel in C++ and the processors that it was compiled for, or why there is none. The environment
        variable LINEAR_ROPE_NATIVE=0 switches it off. "triton": where the Triton kernels run, and of the GPUs of this
        machine for how many settings they were proved, so that "auto" takes them, and for how many they were found
        wrong; LINEAR_ROPE_TRITON=0 keeps "auto" from them. As in {"native": "C++ for x86-64-v3", "triton": "for
        float32, bfloat16 and float16 on CUDA (on a CPU with TRITON_INTERPRET=1); NVIDIA H200: 3 proved, 0 wrong",
        "chunked": "PyTorch 2.13.0, any device and dtype"}.
    """
    told = "; ".join(filter(None, (triton_form.description(), proof.description())))
    return {
        "native": native.description(),
        "triton": told,
        "chunked": f"PyTorch {torch.__version__}, any device and dtype",
    }
