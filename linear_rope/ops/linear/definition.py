"""What every implementation sums, how that becomes the output, and the oracle, which is it written down: quadratic.

Axis names: B batch, H heads, N queries, K keys, M features, D value width.

    numerator_i   = Σ_j  (q_iᵀ k_j) · exp(g_j + L_i − L_j − c_i) · v_j
    denominator_i = Σ_j  (q'_iᵀ k'_j) · exp(g_j + L_i − L_j − c_i)

q and k are mapped (and, with RoPE after the map, rotated); q' and k' are those of the denominator (unrotated in
RoFormer eq. 19). g_j is the logarithm of key j's own scale. L_i = Σ_{t ≤ i} ln a_t, where a_t in [0, 1] is what the
past keeps at token t; both directions of a sequence fade, by −|L_i − L_j|. c_i is the largest exponent among the keys
that query i sees (of g_j alone with a scale, zero without): every factor is at most 1, and c_i cancels in the quotient.

Decays a_{t,p} of pairs p of features have an L_{i,p} each in place of L_i, which is Σ max_p ln a_{t,p} in c_i alone;
the denominator has the same, or (1/P) Σ_p L_{i,p} for all. A rotation of the pairs commutes with them: the state of a
pair has a complex pole, a_{t,p}·e^(iθ_p).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.ops.decay import fading
from linear_rope.ops.linear.call import Call

Sums = tuple[Tensor, Tensor | None, Tensor | None]
"""The numerator (B, H, N, D), the denominator (B, H, N) or None, and c_i, (B, H, N) or broadcastable to it: a constant
for autograd, None for zero."""

# Without a denominator nothing cancels the exponentials; beyond e^60 they are cut off, so that they stay finite.
LARGEST_LOG_SCALE = 60.0


def attention_output(sums: Sums, query_scale: Tensor | None) -> Tensor:
    """(B, H, N, D): the quotient, zero for a query that sees no key; or the plain sum without a denominator.

    It is linear in the numerator, so it also takes gradients of the output to those of the numerator.
    """
    numerator, denominator, scale = sums
    if denominator is not None:
        return quotient(numerator, denominator)
    scales = [x for x in (scale, query_scale) if x is not None]
    if not scales:
        return numerator
    log_scale = sum(scales[1:], start=scales[0])
    # The gradient goes on as if nothing were cut off, as that by hand does.
    cut_off = LARGEST_LOG_SCALE + (log_scale - log_scale.detach())
    log_scale = torch.where(log_scale > LARGEST_LOG_SCALE, cut_off, log_scale)
    return numerator * log_scale.exp().to(numerator.dtype).unsqueeze(-1)


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator`` (B, H, N, D) over ``denominator`` (B, H, N), zero where that is zero."""
    # No reciprocal: its derivative has the square of a denominator, which need not be a float32 number.
    return numerator / denominator.masked_fill(denominator == 0, torch.inf).unsqueeze(-1)


def without_abs(v: Tensor, denominator: str) -> tuple[Tensor, str]:
    """Values (B, H, K, Dv) and a denominator that every implementation knows; :func:`finished` does the rest.

    "abs" is Σ w v / max(|Σ w|, 1), w being the numerator's own weights with their scales (mLSTM: Beck et al. 2024,
    arXiv 2405.04517, eq. 21; RetNet: Sun et al. 2023, arXiv 2307.08621). The sum is one more value, of ones. mLSTM
    writes max(|n·q|, exp(−m)) for sums relative to exp(m), which is the same.
    """
    if denominator != "abs":
        return v, denominator
    # float16 holds no sums of thousands.
    return F.pad(v.float() if v.dtype == torch.float16 else v, (0, 1), value=1.0), "none"


def finished(y: Tensor, denominator: str) -> Tensor:
    """The output (B, H, N, Dv) of what an implementation gave for :func:`without_abs`."""
    return y[..., :-1] / y[..., -1:].abs().clamp(min=1) if denominator == "abs" else y


def reference(call: Call) -> Sums:
    """The sums of a call of features, written as they are defined."""
    queries, keys = call.q.shape[-2], call.k.shape[-2]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=call.q.device)
    if call.causal:
        visible = visible.tril()

    exponent = None if call.key_scale is None else call.key_scale.unsqueeze(-2)
    if call.log_decay is not None:
        between = fading(call.log_decay, call.log_decay.dtype, causal=call.causal)
        exponent = between if exponent is None else between + exponent
    scale = None
    factor = visible.to(call.q.dtype)
    if exponent is not None:
        exponent = exponent.masked_fill(~visible, -torch.inf)
        if call.key_scale is not None:
            # Finite also where no key is seen, so that nothing is −∞ − (−∞).
            scale = exponent.detach().amax(-1).clamp(min=torch.finfo(call.q.dtype).min)
            exponent = exponent - scale.unsqueeze(-1)
        factor = exponent.to(call.q.dtype).exp()

    weights = _products(call.q, call.k, call.pair_decay, causal=call.causal) * factor
    denominator = None
    if call.denominator_q is not None and call.denominator_k is not None:
        products = _products(call.denominator_q, call.denominator_k, call.own_decay, causal=call.causal)
        denominator = (products * factor).sum(-1)
    elif call.has_denominator:
        denominator = weights.sum(-1)
    return weights @ call.v, denominator, scale


def _products(q: Tensor, k: Tensor, decay: Tensor | None, *, causal: bool) -> Tensor:
    """q_iᵀ k_j, (B, H, N, K), of which each pair of features has faded by its own ``decay`` (B, H, N, P)."""
    if decay is None:
        return q @ k.mT
    pairs = decay.shape[-1]
    each = zip(q.chunk(pairs, -1), k.chunk(pairs, -1), decay.unbind(-1), strict=True)
    factors = (((one_q @ one_k.mT), fading(one, q.dtype, causal=causal)) for one_q, one_k, one in each)
    return torch.stack([products * faded.exp() for products, faded in factors]).sum(0)
