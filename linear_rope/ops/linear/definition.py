"""The oracle: linear attention by its definition, with the whole N × K matrix of weights. Quadratic."""

import torch

from linear_rope.ops.decay import fading
from linear_rope.ops.linear.terms import Sums, Terms


def reference(terms: Terms, *, causal: bool) -> Sums:
    """The sums of :mod:`linear_rope.ops.linear.terms`, written as they are defined."""
    queries, keys = terms.q.shape[-2], terms.k.shape[-2]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=terms.q.device)
    if causal:
        visible = visible.tril()

    exponent = None if terms.key_scale is None else terms.key_scale.unsqueeze(-2)
    if terms.log_decay is not None:
        between = fading(terms.log_decay, terms.log_decay.dtype, causal=causal)
        exponent = between if exponent is None else between + exponent
    scale = None
    factor = visible.to(terms.q.dtype)
    if exponent is not None:
        exponent = exponent.masked_fill(~visible, -torch.inf)
        if terms.key_scale is not None:
            # Finite also where no key is seen, so that nothing is −∞ − (−∞).
            scale = exponent.detach().amax(-1).clamp(min=torch.finfo(terms.q.dtype).min)
            exponent = exponent - scale.unsqueeze(-1)
        factor = exponent.to(terms.q.dtype).exp()

    weights = (terms.q @ terms.k.mT) * factor
    denominator = None
    if terms.denominator_q is not None and terms.denominator_k is not None:
        denominator = ((terms.denominator_q @ terms.denominator_k.mT) * factor).sum(-1)
    elif terms.has_denominator:
        denominator = weights.sum(-1)
    return Sums(weights @ terms.v, denominator, scale)
