"""The settings that every attention takes beside its own."""

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, TypedDict, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.checks import check_base
from linear_rope.positions.rope_scaling import RopeScaling
from linear_rope.positions.rotary import BASE
from linear_rope.positions.selective import SelectiveRotation

Init = TypeVar("Init", bound=Callable[..., None])


class Shared(TypedDict, total=False):
    """What every attention takes beside its own settings, see :class:`linear_rope.LinearRoPEAttention`."""

    kv_heads: int | None
    head_dim: int | None
    rope_base: float
    rope_scaling: RopeScaling | None
    rope_fraction: float
    bias: bool
    dropout: float
    rope_angles: str | SelectiveRotation
    local_conv: int
    short_conv: int
    qk_norm: bool
    output_norm: bool
    output_gate: bool | str


DEFAULTS: dict[str, Any] = {"head_dim": None, "rope_base": BASE, "rope_scaling": None, "bias": False, "dropout": 0.0}
DEFAULTS |= {"rope_fraction": 1.0, "rope_angles": "fixed", "local_conv": 0, "short_conv": 0, "qk_norm": False}
DEFAULTS |= {"kv_heads": None, "output_norm": False, "output_gate": False}
GATES: dict[Any, Callable[[Tensor], Tensor]] = {True: F.silu, "silu": F.silu, "sigmoid": torch.sigmoid}


def takes_shared(init: Init) -> Init:
    """Let ``inspect`` see the arguments that ``**shared`` stands for, and refuse others."""
    own, kinds = signature(init), Shared.__annotations__
    *named, _ = own.parameters.values()
    shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=kinds[name]) for name in kinds]
    whole = own.replace(parameters=[*named, *shared])

    @wraps(init)
    def checked(self: nn.Module, *arguments: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in whole.parameters:
                raise TypeError(f"{init.__qualname__}() got an unexpected keyword argument {name!r}")
        init(self, *arguments, **keywords)

    checked.__signature__ = whole  # type: ignore[attr-defined]
    return checked  # type: ignore[return-value]


def check_shared(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for one that it cannot be, whatever the others are."""
    dropout, gate = settings["dropout"], settings["output_gate"]
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is {dropout}; give 0 or more and less than 1")
    for name in ("bias", "qk_norm", "output_norm"):
        if not isinstance(settings[name], bool):
            raise ValueError(f"{name} is {settings[name]!r}; give True or False")
    check_base("rope_base", settings["rope_base"])
    for name in ("local_conv", "short_conv"):
        window = settings[name]
        if not isinstance(window, int) or window < 0 or window == 1:
            raise ValueError(f"{name} is {window!r}; give a whole number of 2 or more, or 0 for none")
    if not isinstance(gate, (bool, str)) or gate not in (False, *GATES):
        raise ValueError(f'output_gate is {gate!r}; give False, True or "silu", or "sigmoid"')
