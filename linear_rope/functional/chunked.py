"""Causal linear attention in chunks: quadratic inside a chunk, a running state between chunks.

With chunks of C positions it takes O(N·C·(M + D) + N·M·D) operations and O(N·(M + D + C) + N·M·D/C) memory.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.functional.bidirectional import bidirectional
from linear_rope.functional.terms import Sums, Terms

CHUNK_SIZE = 64


def chunked(terms: Terms, *, causal: bool, chunk_size: int = CHUNK_SIZE) -> Sums:
    """The sums of :mod:`linear_rope.functional.terms` in time linear in the length."""
    if not causal:
        return bidirectional(terms)
    length = terms.q.shape[-2]
    size = min(chunk_size, length)
    q, k, v = (_chunks(x, size) for x in (terms.q, terms.k, terms.v))
    causal_mask = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()

    if terms.key_scale is None:
        stabiliser = query_factor = key_factor = decay = None
        factor = causal_mask.to(q.dtype)
    else:
        lowest = torch.finfo(q.dtype).min
        scale = _chunks(terms.key_scale.unsqueeze(-1), size, padding=lowest).squeeze(-1)
        running = scale.flatten(-2).cummax(-1).values.view_as(scale)
        chunk_end = running[..., -1:]
        before = F.pad(chunk_end[..., :-1, :], (0, 0, 1, 0), value=lowest)
        stabiliser = running.flatten(-2)[..., :length]
        query_factor = (before - running).exp().unsqueeze(-1)
        key_factor = (scale - chunk_end).exp().unsqueeze(-1)
        decay = (before - chunk_end).exp()
        pairs = scale.unsqueeze(-2) - running.unsqueeze(-1)
        factor = pairs.masked_fill(~causal_mask, -torch.inf).exp()

    def scaled(x: Tensor, by: Tensor | None) -> Tensor:
        return x if by is None else x * by

    weights = (q @ k.mT) * factor
    memory = _states_before(scaled(k, key_factor).mT @ v, decay)
    numerator = weights @ v + scaled(q @ memory, query_factor)

    denominator = None
    if terms.has_denominator:
        if terms.denominator_q is not None and terms.denominator_k is not None:
            q, k = _chunks(terms.denominator_q, size), _chunks(terms.denominator_k, size)
            weights = (q @ k.mT) * factor
        normaliser = _states_before(scaled(k, key_factor).sum(-2).unsqueeze(-1), decay)
        denominator = weights.sum(-1, keepdim=True) + scaled(q @ normaliser, query_factor)
        denominator = denominator.flatten(2, 4)[..., :length]
    return Sums(numerator.flatten(2, 3)[..., :length, :], denominator, stabiliser)


def _chunks(x: Tensor, size: int, *, padding: float = 0.0) -> Tensor:
    """(B, H, N, width) → (B, H, N / size, size, width), padded at the end."""
    missing = -x.shape[-2] % size
    if missing:
        x = F.pad(x, (0, 0, 0, missing), value=padding)
    return x.unflatten(-2, (-1, size))


def _states_before(increments: Tensor, decay: Tensor | None) -> Tensor:
    """For each chunk the decayed sum of the increments of the chunks before it; chunks are axis 2."""
    state = torch.zeros_like(increments[:, :, 0])
    states = []
    for index in range(increments.shape[2]):
        states.append(state)
        if decay is not None:
            state = state * decay[:, :, index].unsqueeze(-1)
        state = state + increments[:, :, index]
    return torch.stack(states, dim=2)
