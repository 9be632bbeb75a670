"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464): a state that unlearns what stood under a key.

With S_0 = 0, keys of length 1 and β_t ∈ [0, 2]::

    S_t = a_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,    out_t = S_tᵀ q_t

So S_t = a_t S_{t−1} + k_t u_tᵀ with u_t = β_t (v_t − a_t S_{t−1}ᵀ k_t): inside a chunk the u_t solve a triangular
system, and with them it is linear attention without a denominator. With a decay of each channel (Kimi Delta Attention:
Kimi Team 2025, arXiv 2510.26692, eq. 1) a_t is a diagonal matrix, Diag(a_t) in place of a_t S_{t−1}'s factor.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.ops.decay import Faded, faded

CHUNK_SIZE = 64


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """In chunks, linear in the length: (B, H, N, Dv), and S after the last token.

    Args:
        q, k, v, beta: (B, H, N, D), float32 or float64, (B, H, N, Dv) and (B, H, N).
        log_decay: ln a_t ≤ 0, (B, H, N), or (B, H, N, D) of each channel; None for 0; −∞ forgets all that came before.
        state: S (B, H, D, Dv) before the first token; None for zeros.
    """
    outputs = []
    for start in range(0, q.shape[2], CHUNK_SIZE):
        part = slice(start, start + CHUNK_SIZE)
        of_part = None if log_decay is None else log_decay[:, :, part]
        output, state = _chunk(q[:, :, part], k[:, :, part], v[:, :, part], beta[:, :, part], of_part, state)
        outputs.append(output)
    assert state is not None
    return torch.cat(outputs, dim=2), state


class _Products(NamedTuple):
    """Of a chunk of C tokens.

    Attributes:
        overlap, weights: (B, H, C, C) products of each key and each query with the keys, faded since those, and
            something finite after the diagonal.
        from_start, to_end: what keys and queries fade by from the start of the chunk and to its end, broadcastable to
            (B, H, C, D).
    """

    overlap: Tensor
    weights: Tensor
    from_start: Tensor
    to_end: Tensor


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    beta = beta.unsqueeze(-1)
    overlap, weights, from_start, to_end = _products(q, k, log_decay)
    wanted = v if state is None else v - (k * from_start) @ state
    if q.shape[2] > 1:  # for one token it would wake a team of threads, and of its matrix the diagonal is not read
        overlap, weights = overlap.tril(-1), weights.tril()
    learnt = torch.linalg.solve_triangular(overlap * beta, wanted * beta, upper=False, unitriangular=True)
    output = weights @ learnt
    after = (k * to_end).mT @ learnt
    if state is not None:
        output = output + (q * from_start) @ state
        after = after + state * from_start[..., -1:, :].mT
    return output, after


def _products(q: Tensor, k: Tensor, log_decay: Tensor | None) -> _Products:
    if log_decay is None:
        one = q.new_ones(1, 1)
        return _Products(k @ k.mT, q @ k.mT, one, one)
    if log_decay.dim() == 4:
        since = Faded(*(x.mT for x in faded(log_decay.mT)))
        overlap, weights = _of_channels(torch.stack((k, q)), k, since)
    else:
        since = Faded(*(x.unsqueeze(-1) for x in faded(log_decay)))
        pairs = _kept(since, Faded(since.sums.mT, since.segment.mT), k.dtype)
        overlap, weights = k @ k.mT * pairs, q @ k.mT * pairs
    start = Faded(torch.zeros_like(since.sums[..., :1, :]), torch.zeros_like(since.segment[..., :1, :]))
    return _Products(
        overlap, weights, _kept(since, start, k.dtype), _kept(_part(since, slice(-1, None)), since, k.dtype)
    )


def _of_channels(x: Tensor, k: Tensor, since: Faded) -> Tensor:
    """Σ_c x_ic k_jc Π_{j<t≤i} a_tc for j ≤ i, else 0: (..., B, H, C, D) → (..., B, H, C, C).

    Blocks of one token are joined two by two: what stands between a pair's tokens is from its first block's end to the
    later one, and from the earlier one to that end, so no exponent is above 0 (GLA: Yang et al. 2023, arXiv 2312.06635,
    has two such levels).
    """
    length, size, whole = k.shape[-2], 1, 1
    while whole < length:
        whole *= 2
    parts = [F.pad(each, (0, 0, 0, whole - length)) for each in (x, k, *since)]
    products = (parts[0] * parts[1]).sum(-1)[..., None, None]
    while size < length:
        halves = (each.unflatten(-2, (-1, 2, size)).unbind(-3) for each in parts)
        (_, x_later), (k_earlier, _), *both = halves
        earlier, later = (Faded(*each) for each in zip(*both, strict=True))
        border = _part(earlier, slice(-1, None))
        across = (x_later * _kept(later, border, k.dtype)) @ (k_earlier * _kept(border, earlier, k.dtype)).mT
        one, other = products.unflatten(-3, (-1, 2)).unbind(-3)
        above, below = torch.cat((one, torch.zeros_like(one)), dim=-1), torch.cat((across, other), dim=-1)
        products, size = torch.cat((above, below), dim=-2), 2 * size
    return products[..., 0, :length, :length]


def _part(since: Faded, tokens: slice) -> Faded:
    return Faded(since.sums[..., tokens, :], since.segment[..., tokens, :])


def _kept(later: Faded, earlier: Faded, dtype: torch.dtype) -> Tensor:
    """Π a_t from after the earlier token to the later one, zero where a reset is between them; 1 in the other order."""
    between = (later.sums - earlier.sums).to(dtype).clamp(max=0)
    return between.masked_fill(later.segment != earlier.segment, -torch.inf).exp()
