"""The one entrance to linear attention: checks, feature map and rotation, then an implementation."""

from collections.abc import Callable

import torch
from torch import Tensor

from linear_rope.checks import check_base, check_choice, check_padding_mask
from linear_rope.features.base import FeatureMap
from linear_rope.features.favor import FavorPlus
from linear_rope.functional.causal_autograd import stream
from linear_rope.functional.chunked import chunked
from linear_rope.functional.recurrent import recurrent
from linear_rope.functional.reference import reference
from linear_rope.functional.rotated_features import Denominator, Mapping, Rope
from linear_rope.functional.terms import Sums, attention_output, full_precision
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.rotary import rotations
from linear_rope.positions.tokens import Positions, check_positions
from linear_rope.tracing import is_eager

IMPLEMENTATIONS: dict[str, Callable[..., Sums]] = {
    "reference": reference,
    "chunked": chunked,
    "recurrent": recurrent,
}


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
    implementation: str = "auto",
) -> Tensor:
    """Linear attention, with rotary positions after the feature map (RoFormer, arXiv 2104.09864, eq. 19).

    With R_m the rotation of position m and φ the feature map, over the keys n that query m sees::

        out_m = Σ_n (R_m φ(q_m))ᵀ (R_n φ(k_n)) v_n  /  Σ_n φ(q_m)ᵀ φ(k_n)

    The weights can be negative and need not sum to one.

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
            Default: the count of unpadded tokens before each one.
        rope_base: θ_i = rope_base^(−2i/width), with width D before the map and M after it.
        rope_scaling: other angles for sequences longer than those of training, see
            :mod:`linear_rope.positions.rope_scaling`.
        implementation: "reference" (quadratic, the definition), "chunked" (linear time), "recurrent" (a loop over
            positions with a state of constant size), or "auto", which is "chunked". The causal chunked form keeps
            nothing as wide as the features for its backward pass, and can be differentiated once; the others, and
            "chunked" under torch.compile and torch.func, as often as one likes.

    Returns:
        (B, H, N, Dv) in the dtype of ``v``. Angles, exponentials and sums are float32, or float64 for float64 inputs.

    Raises:
        ValueError: shapes, masks, positions or names that do not fit; the message says what would.
    """
    _check_tensors(q, k, v, causal, key_padding_mask)
    if not isinstance(feature_map, FeatureMap):
        raise ValueError(f"feature_map is {feature_map!r}; give a FeatureMap, such as FavorPlus({q.shape[-1]}, seed=0)")
    if implementation != "auto" and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose from {', '.join(('auto', *IMPLEMENTATIONS))}")
    name = "chunked" if implementation == "auto" else implementation
    if q.shape[0] == 0 or q.shape[1] == 0:
        # Nothing to attend to or from, which the definition has no trouble with.
        name = "reference"
    with full_precision(q.device):
        mapping = make_mapping(
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
        )
        if name == "chunked" and causal and is_eager(q, k, v):
            return stream(mapping, q, k, v)
        terms = mapping.terms(q, k, v)
        return attention_output(IMPLEMENTATIONS[name](terms, causal=causal), terms.query_scale).to(v.dtype)


def make_mapping(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: FeatureMap,
    rope: Rope,
    denominator: Denominator,
    key_padding_mask: Tensor | None,
    positions: Positions | None,
    rope_base: float,
    rope_scaling: RopeScaling | None,
) -> Mapping:
    """What turns these queries, keys and values into terms; the arguments are those of :func:`linear_attention`."""
    check_choice("rope", rope, ("after", "before", "none"))
    check_choice("denominator", denominator, ("unrotated", "rotated", "none"))
    check_base("rope_base", rope_base)
    check_scaling(rope_scaling, rotates=rope != "none")
    check_positions(positions, q, k)
    feature_map.check_width(q)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.promote_types(v.dtype, torch.float32))
    q_rotation = k_rotation = None
    if rope != "none":
        width = feature_map.count(q.shape[-1]) if rope == "after" else q.shape[-1]
        if rope == "before":
            _check_even(width, "the head dimension", rope, "head_dim")
        else:
            _check_even(width, "the number of features", rope, "num_features")
        # A temperature of softmax is for what estimates softmax.
        tempered = rope == "before" and isinstance(feature_map, FavorPlus)
        q_rotation, k_rotation = rotations(
            q,
            k,
            positions,
            key_padding_mask,
            width=width,
            base=rope_base,
            dtype=dtype,
            scaling=rope_scaling,
            magnitude=rope_scaling.magnitude if rope_scaling and tempered else 1.0,
        )
    padding = None if key_padding_mask is None else key_padding_mask[:, None, :, None]
    return Mapping(feature_map, rope, denominator, dtype, padding, q_rotation, k_rotation)


def _check_even(width: int, what: str, rope: str, argument: str) -> None:
    if width % 2:
        raise ValueError(
            f'rope="{rope}" rotates pairs, but {what} is {width}; give an even {argument}, such as {width + 1}'
        )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, causal: bool, key_padding_mask: Tensor | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; give (batch, heads, length, width)")
        if not x.is_floating_point():
            raise ValueError(f"{name} has dtype {x.dtype}; give a floating-point tensor")
        if x.device != q.device:
            raise ValueError(f"q is on {q.device} and {name} on {x.device}; move them to one device")
        if x.shape[2] == 0:
            raise ValueError(f"{name} has length 0; give at least one position")
    if q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"q has shape {tuple(q.shape)} and k {tuple(k.shape)}; their batch, heads and width must be equal"
        )
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(
            f"k has shape {tuple(k.shape)} and v {tuple(v.shape)}; their batch, heads and length must be equal"
        )
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"causal=True needs as many keys as queries; there are {q.shape[2]} queries, {k.shape[2]} keys"
        )
    check_padding_mask(key_padding_mask, k.shape[0], k.shape[2])
