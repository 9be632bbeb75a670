"""The oracle: linear attention by its definition, with the whole N × K matrix of weights. Quadratic."""

import torch

from linear_rope.functional.terms import Sums, Terms


def reference(terms: Terms, *, causal: bool) -> Sums:
    """The sums of :mod:`linear_rope.functional.terms`, written as they are defined."""
    queries, keys = terms.q.shape[-2], terms.k.shape[-2]
    visible = torch.ones(queries, keys, dtype=torch.bool, device=terms.q.device)
    if causal:
        visible = visible.tril()

    stabiliser = None
    factor = visible.to(terms.q.dtype)
    if terms.key_scale is not None:
        scale = terms.key_scale.unsqueeze(-2).expand(*terms.key_scale.shape[:-1], queries, keys)
        scale = scale.masked_fill(~visible, -torch.inf)
        stabiliser = scale.amax(-1)
        factor = (scale - stabiliser.unsqueeze(-1)).exp()

    weights = (terms.q @ terms.k.mT) * factor
    denominator = None
    if terms.denominator_q is not None and terms.denominator_k is not None:
        denominator = ((terms.denominator_q @ terms.denominator_k.mT) * factor).sum(-1)
    elif terms.has_denominator:
        denominator = weights.sum(-1)
    return Sums(weights @ terms.v, denominator, stabiliser)
