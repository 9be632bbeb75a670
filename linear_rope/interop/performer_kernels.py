"""performer-pytorch's two kernels: their features, and their attention with its constants and no look at the future.

Axis names: B batch, H heads, N queries, K keys, M features, D head width.
"""

from typing import Any

import torch
from torch import Tensor

from linear_rope.features.base import FeatureMap, Features, FormulaCall
from linear_rope.features.favor import favor_features
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.operator import attend
from linear_rope.ops.linear.state import read_state, sum_keys
from linear_rope.precision import full_precision

# The peer has these as defaults that none of its modules changes.
SOFTMAX_EPS = 1e-4
GENERALIZED_EPS = 1e-3
DENOMINATOR_EPS = 1e-6


class PeerFeatures(FeatureMap):
    """φ of a ``FastAttention``, with the random features and the kernel that it holds at the time.

    The softmax kernel's is FAVOR+ as :class:`linear_rope.FavorPlus` has it, ``generalized_attention``'s is
    f(ωx / D^¼) + 0.001 for its ``kernel_fn`` f.

    Args:
        fast_attention: the module; its buffer keeps its place in the state dict, and its redraw is this map's.
    """

    eps = 1e-6

    def __init__(self, fast_attention: Any) -> None:
        super().__init__(fast_attention.dim_heads, fast_attention.nb_features)
        self._unregistered = (fast_attention,)

    @property
    def omega(self) -> Tensor:
        """(M, D)."""
        omega: Tensor = self._unregistered[0].projection_matrix
        return omega

    @property
    def generalized(self) -> bool:
        """Whether f(ωx / D^¼) takes the softmax kernel's place."""
        return bool(self._unregistered[0].generalized_attention)

    def features(self, x: Tensor) -> Features:
        if not self.generalized:
            return favor_features(x, self.omega, self.eps)
        projected = x * x.shape[-1] ** -0.25 @ self.omega.to(x.dtype).T
        return Features(self._unregistered[0].kernel_fn(projected) + GENERALIZED_EPS, None)

    def formula(self) -> FormulaCall | None:
        if self.generalized:
            return None
        return FormulaCall("favor+", self.omega, [False, False, self.eps])


def peer_attention(
    q: Tensor, k: Tensor, v: Tensor, feature_map: PeerFeatures, *, causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    """What ``FastAttention`` computes, (B, H, N, D) in the dtype of ``v``, from the keys that each query sees only.

    Its softmax kernel gives a key the features exp(ωx' − |x'|²/2 − G) + ε, where G is the largest ωx' of all keys and
    of the future. Here G is that of the keys that the query sees: the same wherever no later key exceeds them. A query
    that sees no key gives zeros.
    """
    with full_precision(q.device):
        dtype = torch.promote_types(v.dtype, torch.float32)
        q, k, values = q.to(dtype), k.to(dtype), v.to(dtype)
        largest, key_scale = None, None
        denominator_eps = DENOMINATOR_EPS if causal else 0.0
        if feature_map.generalized:
            q, k = feature_map.features(q).values, feature_map.features(k).values
        else:
            q, (k, largest, key_scale) = _queries(q, feature_map.omega), _keys(k, feature_map.omega)
            # The peer divides both features by √M before it adds this.
            denominator_eps *= q.shape[-1] ** 0.5
        if key_padding_mask is not None:
            padding = key_padding_mask[:, None]
            k, values = (x.masked_fill(padding.unsqueeze(-1), 0) for x in (k, values))
            if largest is not None and key_scale is not None:
                least = torch.finfo(dtype).min
                largest, key_scale = (x.masked_fill(padding, least) for x in (largest, key_scale))
        call = Call(q, k, values, key_scale=key_scale, causal=causal)
        numerator, denominator = _sums(call, largest, key_padding_mask)
        denominator = denominator + denominator_eps * q.sum(-1)
        sees_none = denominator == 0
        return (numerator / torch.where(sees_none, 1, denominator).unsqueeze(-1)).to(v.dtype)


def _exponents(x: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """ωx' (B, H, N, M) and |x'|²/2 (B, H, N)."""
    scaled = x * x.shape[-1] ** -0.25
    return scaled @ omega.to(x.dtype).T, scaled.square().sum(-1) / 2


def _queries(q: Tensor, omega: Tensor) -> Tensor:
    exponents, half_norm = _exponents(q, omega)
    # A constant for autograd, as in the peer: with ε it does not cancel.
    return (exponents - half_norm.unsqueeze(-1) - exponents.detach().amax(-1, keepdim=True)).exp() + SOFTMAX_EPS


def _keys(k: Tensor, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(ωx' − m) with each key's own maximum m, m, and the logarithm of what is left of the scale, m − |x'|²/2."""
    exponents, half_norm = _exponents(k, omega)
    largest = exponents.detach().amax(-1)
    return (exponents - largest.unsqueeze(-1)).exp(), largest, largest - half_norm


def _sums(call: Call, largest: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The numerator (B, H, N, D) and the denominator (B, H, N), relative to exp(G), with what ε adds to each."""
    q, v = call.q, call.v
    if call.causal:
        result = attend(call)
        sums = result.output * result.denominator.unsqueeze(-1), result.denominator, result.scale
    numerator, denominator, scale = sums if call.causal else read_state(call, sum_keys(call))
    assert denominator is not None
    if largest is None or scale is None:
        return numerator, denominator
    of_one = torch.ones_like(largest) if mask is None else (~mask)[:, None].to(v.dtype).expand_as(largest)
    if call.causal:
        seen, total, count = largest.cummax(-1).values, v.cumsum(-2), of_one.cumsum(-1)
    else:
        seen, total, count = (largest.amax(-1, keepdim=True), v.sum(-2, keepdim=True), of_one.sum(-1, keepdim=True))
    factor = (scale - seen).exp().to(v.dtype)
    of_eps = SOFTMAX_EPS * q.sum(-1)
    return (
        numerator * factor.unsqueeze(-1) + of_eps.unsqueeze(-1) * total,
        denominator * factor + of_eps * count,
    )
