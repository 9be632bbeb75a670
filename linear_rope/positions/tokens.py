"""Which position each token has: counted, or given and checked."""

import torch
from torch import Tensor

Positions = Tensor | tuple[Tensor, Tensor]


def token_positions(length: int, key_padding_mask: Tensor | None, device: torch.device) -> Tensor:
    """0, 1, 2, ... (N,), or with a mask (B, N) the count of unpadded tokens before each one."""
    if key_padding_mask is None:
        return torch.arange(length, device=device)
    return ((~key_padding_mask).cumsum(-1) - 1).clamp(min=0)


def align_positions(positions: Tensor, x: Tensor, *, name: str = "positions") -> Tensor:
    """``positions`` (N,) or (B, N), shaped to broadcast against the leading axes of ``x`` (B, ..., N, width).

    Raises:
        ValueError: another shape, or boolean or complex positions.
    """
    length = x.shape[-2]
    if not isinstance(positions, Tensor):
        raise ValueError(f"{name} is of type {type(positions).__name__}; give a tensor")
    if positions.dtype == torch.bool or positions.is_complex():
        raise ValueError(f"{name} has dtype {positions.dtype}; give integers or floats")
    if positions.dim() == 1 and positions.shape == (length,):
        return positions
    if positions.dim() == 2 and x.dim() >= 3 and positions.shape == (x.shape[0], length):
        return positions.view(x.shape[0], *(1,) * (x.dim() - 3), length)
    raise ValueError(
        f"{name} has shape {tuple(positions.shape)}; for x of shape {tuple(x.shape)} give ({length},)"
        + (f" or ({x.shape[0]}, {length})" if x.dim() >= 3 else "")
    )


def aligned_positions(
    q: Tensor, k: Tensor, positions: Positions | None, key_padding_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The positions of queries and of keys, given or counted, each (length,) or (B, 1, length).

    The arguments are those of :func:`linear_rope.positions.rotary.rotations`.
    """
    if positions is not None:
        return positions_of_both(positions, q, k)
    queries, keys = q.shape[-2], k.shape[-2]
    k_positions = align_positions(token_positions(keys, key_padding_mask, k.device), k)
    return (k_positions if queries == keys else token_positions(queries, None, q.device)), k_positions


def check_positions(positions: Positions | None, q: Tensor, k: Tensor) -> None:
    """Raises ValueError unless ``positions`` fits the shapes of ``q`` and ``k``."""
    if positions is not None:
        positions_of_both(positions, q, k)


def positions_of_both(positions: Positions, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The given positions of queries and of keys, each shaped by :func:`align_positions`.

    Raises:
        ValueError: one tensor for different numbers of queries and keys, no pair, or as :func:`align_positions`.
    """
    if not isinstance(positions, tuple):
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"positions is one tensor, but there are {q.shape[-2]} queries and {k.shape[-2]} keys; give a pair "
                "(query positions, key positions)"
            )
        aligned = align_positions(positions, q)
        return aligned, aligned
    if len(positions) != 2:
        raise ValueError(f"positions has {len(positions)} entries; give a pair (query positions, key positions)")
    names = ("positions[0], of the queries,", "positions[1], of the keys,")
    q_positions, k_positions = (
        align_positions(at, x, name=name) for at, x, name in zip(positions, (q, k), names, strict=True)
    )
    return q_positions, k_positions


def last_where(last: Tensor) -> Tensor:
    """(B, N) bool → the order in which those that are True come last and nothing else changes."""
    at = torch.arange(last.shape[1], device=last.device)
    return (at + last * (at[-1:] + 1)).argsort(dim=-1)  # ONNX has no stable sort, so no two are equal


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """(B, H, N, ...) with its positions in another order, or some of them: (B, K)."""
    index = order[(slice(None), None, slice(None), *[None] * (x.dim() - 3))]
    return x.gather(2, index.expand(-1, x.shape[1], -1, *x.shape[3:]))
