"""The gated delta rule by its definition, token by token."""

import torch
from torch import Tensor


def delta_reference(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The arguments and results are those of :func:`linear_rope.ops.delta.chunked.delta_rule`."""
    memory = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1]) if state is None else state
    outputs = []
    for t in range(q.shape[2]):
        key, rate = k[:, :, t].unsqueeze(-1), beta[:, :, t, None, None]
        if log_decay is not None:
            memory = memory * log_decay[:, :, t].exp().to(q.dtype).reshape(*q.shape[:2], -1, 1)
        memory = memory - rate * key @ (key.mT @ memory) + rate * key @ v[:, :, t].unsqueeze(-2)
        outputs.append((memory.mT @ q[:, :, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, dim=2), memory
