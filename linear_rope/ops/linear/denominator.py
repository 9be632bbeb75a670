"""The denominator of RoFormer eq. 19, Σ_j φ(q_i)ᵀφ(k_j): linear attention whose values are all one.

It has features of its own (unrotated), so it cannot share the numerator's matrix of weights. Its state is a vector a
head, so carrying it is cheap, and much smaller chunks than the numerator's take the least time.

Axis names: S = B·H sequences and heads, n chunks a sequence, G = S·n, C chunk size, M features.
"""

import torch
from torch import Tensor

from linear_rope.ops.linear.stabiliser import (
    ChunkFactors,
    increment_gradients,
    state_after,
    state_gradient,
    states_before,
)

CHUNK_SIZE = 16


def denominator_sums(q: Tensor, k: Tensor, factors: ChunkFactors, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums (G, C) of q and k (G, C, M) over a block of chunks and the keys before it, and the state (S, M) after it.

    ``state`` (S, M) is Σ exp(g_j − c) k_j over the keys before the block; None for none.
    """
    increments = _increments(k, factors)
    states = states_before(increments, factors, state)
    read = (q * states.view(-1, 1, q.shape[-1])).sum(-1)
    if factors.query is not None:
        read = read * factors.query.squeeze(-1)
    sums = (torch.bmm(q, k.mT) * factors.pairs).sum(-1) + read
    return sums, state_after(increments, factors, state)


def denominator_gradients(
    q: Tensor,
    k: Tensor,
    factors: ChunkFactors,
    state: Tensor | None,
    grad_sums: Tensor,
    grad_after: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``q``, ``k`` and the state before the block, from those of the sums and the state after it."""
    states = states_before(_increments(k, factors), factors, state)
    grad_sums = grad_sums.unsqueeze(-1)
    grad_read = grad_sums if factors.query is None else grad_sums * factors.query
    grad_weights = grad_sums * factors.pairs
    grad_states = (q * grad_read).sum(1).view_as(states)
    grad_increments = increment_gradients(grad_states, factors, grad_after).view(-1, 1, k.shape[-1])
    grad_q = torch.bmm(grad_weights, k)
    grad_q.addcmul_(grad_read, states.view(-1, 1, q.shape[-1]))
    grad_k = torch.bmm(grad_weights.mT, q)
    if factors.key is None:
        grad_k.add_(grad_increments)
    else:
        grad_k.addcmul_(factors.key, grad_increments)
    return grad_q, grad_k, state_gradient(grad_states, factors, grad_after)


def _increments(k: Tensor, factors: ChunkFactors) -> Tensor:
    """What each chunk adds to the state, (S, n, M)."""
    scaled = k if factors.key is None else k * factors.key
    return scaled.sum(1).view(-1, factors.carry.shape[-1], k.shape[-1])
