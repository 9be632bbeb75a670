"""Checks of arguments that several parts share. A ValueError names the argument, what came, and what would do."""

import math
from numbers import Integral

import torch
from torch import Tensor, nn


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(map(repr, choices))}")


def check_at_least(least: int, **settings: object) -> None:
    """Raises ValueError for a setting below ``least``, or no whole number."""
    for name, value in settings.items():
        if not isinstance(value, (Integral, torch.SymInt)) or value < least:
            raise ValueError(f"{name} is {value!r}; give a whole number, {least} or more")


def check_base(name: str, base: float) -> None:
    """Raises ValueError unless ``base``, of RoPE's angles, is a positive finite number."""
    if not isinstance(base, (int, float)) or not 0 < base < math.inf:
        raise ValueError(f"{name} is {base!r}; give a positive finite number, such as 10000")


def check_fraction(name: str, fraction: float, *, rotates: bool = True) -> None:
    """Raises ValueError unless ``fraction``, of the width that RoPE rotates, is above 0 and at most 1, and 1 where
    nothing is rotated.
    """
    if not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise ValueError(f"{name} is {fraction!r}; give more than 0, and at most 1, which rotates everything")
    if fraction != 1 and not rotates:
        raise ValueError(f"{name} is {fraction}, but RoPE is not used; leave it out, or choose a RoPE")


def check_sequences(name: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    """Raises ValueError unless ``x`` is (batch, length, ``dim``), length 1 or more, of ``dtype`` (None: of any), or
    under autocast.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} is of type {type(x).__name__}; give a tensor (batch, length, {dim})")
    if dtype not in (None, x.dtype) and not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise ValueError(f"{name} has dtype {x.dtype}; give {dtype}, as the weights are, or convert the module")
    if x.dim() != 3 or x.shape[-1] != dim or x.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; give (batch, length, {dim}), length 1 or more")


def check_padding_mask(key_padding_mask: Tensor | None, batch: int, keys: int) -> None:
    """Raises ValueError unless the mask is None or (batch, keys) of bool."""
    if key_padding_mask is None:
        return
    if not isinstance(key_padding_mask, Tensor):
        raise ValueError(f"key_padding_mask is of type {type(key_padding_mask).__name__}; give a tensor of torch.bool")
    if key_padding_mask.dtype != torch.bool or key_padding_mask.shape != (batch, keys):
        raise ValueError(
            f"key_padding_mask has dtype {key_padding_mask.dtype} and shape {tuple(key_padding_mask.shape)}; give "
            f"torch.bool and ({batch}, {keys}), True at padding"
        )


def check_weights_are_known(module: nn.Module) -> None:
    """Raises ValueError where a module keeps weights in a list, tuple or dict, in which PyTorch does not look for them:
    no optimiser would train them, and no state dict hold them.
    """
    known = {id(weight) for weight in module.parameters()}
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute in ("_parameters", "_modules") or not isinstance(value, (list, tuple, dict)):
                continue
            for each in value.values() if isinstance(value, dict) else value:
                weights = [*each.parameters()] if isinstance(each, nn.Module) else [each]
                if any(isinstance(weight, nn.Parameter) and id(weight) not in known for weight in weights):
                    raise ValueError(
                        f"{type(part).__name__}{f' ({name})' if name else ''} keeps weights in {attribute}, a "
                        f"{type(value).__name__}, where nothing trains or saves them; make it a "
                        "torch.nn.ParameterList, ParameterDict, ModuleList or ModuleDict"
                    )
