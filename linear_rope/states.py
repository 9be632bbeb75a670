"""What the states of all attentions can do: move to another device or dtype, leave autograd's graph, be saved.

A state is a named tuple of tensors, None, numbers, and such tuples. ``torch.save`` writes one and ``torch.load`` reads
it, also with ``weights_only``.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")

EXACT = ("phase", "stabiliser", "faded", "log_decay")
"""what keeps its dtype: sums of angles and logarithms, which are kept wider than what they multiply"""


def mapped(state: Any, function: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """The state with ``function(name, tensor)`` in place of each tensor."""
    if isinstance(state, Tensor):
        return function(name, state)
    if not isinstance(state, tuple):
        return state
    if hasattr(state, "_fields"):
        return type(state)(*(mapped(part, function, field) for field, part in zip(state._fields, state, strict=True)))
    return type(state)(mapped(part, function, name) for part in state)


def moved(state: S, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> S:
    """The state on another device, in another dtype, which can come first; what has to be exact keeps its own.

    Raises ValueError for a dtype of integers.
    """
    if isinstance(device, torch.dtype):
        device, dtype = None, device
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype is {dtype}; give a floating-point one")

    has_wide = device is None or torch.device(device).type != "mps"

    def move(name: str, x: Tensor) -> Tensor:
        new = dtype if x.is_floating_point() and name not in EXACT else None
        if not has_wide and x.dtype == torch.float64:
            new = new or torch.float32
        return x.to(device=device, dtype=new)

    result: S = mapped(state, move)
    return result


def savable(*names: str) -> Callable[[type[S]], type[S]]:
    """Give a kind of states ``to`` and ``detach``, and let ``torch.load`` read it with ``weights_only``.

    Args:
        names: under which earlier versions saved it.
    """

    def decorate(kind: type[S]) -> type[S]:
        torch.serialization.add_safe_globals([kind, *((kind, name) for name in names)])
        kind.to, kind.detach = moved, _detach  # type: ignore[attr-defined]
        return kind

    return decorate


def _detach(state: S) -> S:
    """Without the graph that made it, to go on from without differentiating what came before."""
    return mapped(state, lambda _, x: x.detach())
