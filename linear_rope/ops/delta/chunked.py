"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464): a state that unlearns what stood under a key.

With S_0 = 0, keys of length 1 and β_t ∈ [0, 1]::

    S_t = a_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ,    out_t = S_tᵀ q_t

So S_t = a_t S_{t−1} + k_t u_tᵀ with u_t = β_t (v_t − a_t S_{t−1}ᵀ k_t): inside a chunk the u_t solve a triangular
system, and with them it is linear attention without a denominator.
"""

import torch
from torch import Tensor

from linear_rope.ops.decay import faded

CHUNK_SIZE = 64


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """In chunks, linear in the length: (B, H, N, Dv), and S after the last token.

    Args:
        q, k, v, beta: (B, H, N, D), float32 or float64, (B, H, N, Dv) and (B, H, N).
        log_decay: (B, H, N) ln a_t ≤ 0, or None for 0; −∞ forgets all that came before.
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


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    length = q.shape[2]
    before = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(-1)
    pairs = to_end = from_start = None
    if log_decay is not None:
        sums, segment = faded(log_decay)
        same = segment.unsqueeze(-1) == segment.unsqueeze(-2)
        between = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(before.mT, 0)
        pairs = between.exp().masked_fill(~same, 0).to(q.dtype)
        to_end = pairs[..., -1, :].unsqueeze(-1)
        from_start = sums.exp().masked_fill(segment > 0, 0).to(q.dtype).unsqueeze(-1)

    def faded_by(x: Tensor, factor: Tensor | None) -> Tensor:
        return x if factor is None else x * factor

    beta = beta.unsqueeze(-1)
    overlap = faded_by(k @ k.mT, pairs).masked_fill(~before, 0) * beta
    wanted = v if state is None else v - faded_by(k @ state, from_start)
    learnt = torch.linalg.solve_triangular(overlap, wanted * beta, upper=False, unitriangular=True)
    weights = faded_by(q @ k.mT, pairs)
    weights = weights.tril() if length > 1 else weights
    output = weights @ learnt
    after = k.mT @ faded_by(learnt, to_end)
    if state is not None:
        output = output + faded_by(q @ state, from_start)
        after = after + faded_by(state, None if from_start is None else from_start[..., -1:, :])
    return output, after
