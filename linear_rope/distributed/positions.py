"""The positions of the tokens of one part, counted from the first token of the first part."""

import torch
import torch.distributed as dist
from torch import Tensor

from linear_rope.distributed.states import all_gathered
from linear_rope.positions.tokens import Positions


def global_positions(
    q: Tensor, k: Tensor, key_padding_mask: Tensor | None, group: dist.ProcessGroup | None
) -> Positions:
    """Default positions of a part's queries and keys, as :func:`linear_rope.linear_attention` counts them in the whole.
    How many tokens each part has is all that passes between the processes.

    Raises ValueError, in every process, where positions cannot be counted part by part.
    """
    batch, _, queries, _ = q.shape
    keys = k.shape[2]
    tokens = torch.full((batch,), keys, device=k.device)
    if key_padding_mask is not None:
        tokens = (~key_padding_mask).sum(-1)
    gathered = all_gathered([torch.cat((tokens.new_tensor([queries, keys]), tokens))], group)
    counts = torch.stack([each for (each,) in gathered if each is not None])
    before = counts[: dist.get_rank(group)].sum(0)
    together = bool((counts[:, 0] == counts[:, 1]).all())
    totals = counts.sum(0)
    if not together and totals[0] == totals[1] and bool((totals[2:] < totals[1]).any()):
        raise ValueError(
            f"positions is None, and with padding they are counted for queries and keys together; the parts have "
            f"{counts[:, 0].tolist()} queries and {counts[:, 1].tolist()} keys: give positions, or as many of both"
        )
    k_positions = _counted(keys, key_padding_mask, before[2:])
    return k_positions if together else (torch.arange(queries, device=q.device) + before[0], k_positions)


def _counted(length: int, key_padding_mask: Tensor | None, before: Tensor) -> Tensor:
    """(N,), or (B, N) where sequences differ: the count of unpadded tokens before each."""
    if key_padding_mask is not None:
        return ((~key_padding_mask).cumsum(-1) + before.unsqueeze(-1) - 1).clamp(min=0)
    positions = torch.arange(length, device=before.device)
    return positions + before[0] if bool((before == before[0]).all()) else positions + before.unsqueeze(-1)
