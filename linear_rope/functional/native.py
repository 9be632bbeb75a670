"""The causal form in C++ (native.cpp), for float32 on a CPU: the same call, result and gradients as causal.py's."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CHUNK = 32
SAVED = 8
"""chunks between the states that are kept for the backward pass; both as in native.cpp"""
PANEL = 16

FORMULAS = ("given", "elu+1", "relu", "favor+")
DENOMINATORS = ("unrotated", "rotated", "none")
SMALLEST = torch.finfo(torch.float32).min


class _Rows(ctypes.Structure):
    """A tensor (B, H, N, ·) whose last axis is contiguous."""

    _fields_ = (("data", ctypes.c_void_p), ("batch", ctypes.c_long), ("head", ctypes.c_long), ("position", ctypes.c_long))


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Call(ctypes.Structure):
    _fields_ = (
        *_fields(ctypes.c_long, "size batch heads length width values features"),
        *_fields(ctypes.c_long, "formula hyperbolic paired denominator"),
        ("eps", ctypes.c_double),
        *_fields(_Rows, "q k v denominator_q denominator_k"),
        *_fields(ctypes.c_void_p, "query_scale key_scale log_decay padding q_rotation k_rotation"),
        *_fields(ctypes.c_long, "q_rotation_batch k_rotation_batch"),
        *_fields(ctypes.c_void_p, "memory normaliser stabiliser projection"),
        ("output", _Rows),
        *_fields(ctypes.c_void_p, "total new_memory new_normaliser saved scale new_stabiliser"),
        ("grad_output", _Rows),
        *_fields(ctypes.c_void_p, "grad_total grad_new_memory grad_new_normaliser"),
        *_fields(_Rows, "grad_q grad_k grad_v grad_denominator_q grad_denominator_k"),
        *_fields(ctypes.c_void_p, "of_q of_k grad_memory grad_normaliser parallel"),
        ("threads", ctypes.c_long),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled native.cpp, or None where there is none or LINEAR_ROPE_NATIVE=0 switches it off."""
    path = Path(os.environ.get("LINEAR_ROPE_NATIVE_LIBRARY", Path(__file__).with_name("native.so")))
    if os.environ.get("LINEAR_ROPE_NATIVE") == "0" or not path.exists():
        return None
    return ctypes.CDLL(str(path))


@cache
def _parallel() -> int | None:
    """GOMP_parallel of the OpenMP that PyTorch has loaded, so that both share their threads."""
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def takes(call: Any) -> bool:
    """Whether a call is one for native.cpp."""
    return library() is not None and call.q.device.type == "cpu" and call.dtype == torch.float32


def padded(count: int) -> int:
    """The next multiple of 16."""
    return (count + PANEL - 1) // PANEL * PANEL


def saved_shape(call: Any) -> tuple[int, ...]:
    """Of the states that the forward pass keeps for the backward pass."""
    batch, heads, length, _ = call.q.shape
    features = padded(call.features)
    state = features * padded(call.v.shape[-1]) + features + PANEL
    return (length // (CHUNK * SAVED) + 1, batch, heads, state)


class _Arguments:
    """A _Call under construction, and the tensors that it points to."""

    def __init__(self, call: Any) -> None:
        self.c = _Call(size=ctypes.sizeof(_Call))
        self.kept: list[Tensor] = []
        batch, heads, length, width = call.q.shape
        self.set(batch=batch, heads=heads, length=length, width=width, values=call.v.shape[-1], features=call.features)
        numbers = list(call.numbers)
        if call.formula == "favor+":
            hyperbolic, paired, eps = numbers
        else:
            hyperbolic, paired = 0, call.formula == "elu+1" and numbers[0]
            eps = numbers[0] if call.formula == "relu" else 0
        self.set(
            formula=FORMULAS.index(call.formula),
            denominator=DENOMINATORS.index(call.denominator),
            hyperbolic=int(hyperbolic),
            paired=int(paired),
            eps=eps,
            threads=torch.get_num_threads(),
            parallel=_parallel(),
        )
        for name in ("q", "k", "v", "denominator_q", "denominator_k"):
            self.rows(name, getattr(call, name))
        for name in ("query_scale", "key_scale", "log_decay", "stabiliser"):
            self.flat(name, getattr(call, name), torch.float64)
        for name in ("memory", "normaliser"):
            self.flat(name, getattr(call, name), torch.float32)
        self.flat("padding", call.padding, torch.bool)
        for name in ("q_rotation", "k_rotation"):
            rotation = getattr(call, name)
            if rotation is not None:
                self.flat(name, rotation, torch.float32)
                self.set(**{f"{name}_batch": 0 if rotation.shape[0] == 1 else length * call.features})
        if call.constant is not None:
            constant = call.constant.float()
            self.flat("projection", constant * constant.shape[-1] ** -0.25, torch.float32)

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.c, name, value)

    def flat(self, name: str, x: Tensor | None, dtype: torch.dtype) -> None:
        if x is not None:
            x = x.to(dtype).contiguous()
            self.kept.append(x)
            setattr(self.c, name, x.data_ptr())

    def rows(self, name: str, x: Tensor | None) -> None:
        if x is not None:
            x = x.float()
            x = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
            self.kept.append(x)
            setattr(self.c, name, _Rows(x.data_ptr(), *x.stride()[:3]))

    def out(self, name: str, x: Tensor) -> Tensor:
        """A tensor that is written to."""
        self.kept.append(x)
        setattr(self.c, name, x.data_ptr())
        return x

    def out_rows(self, name: str, x: Tensor) -> Tensor:
        self.kept.append(x)
        setattr(self.c, name, _Rows(x.data_ptr(), *x.stride()[:3]))
        return x

    def run(self, function: str) -> None:
        native = library()
        assert native is not None
        status = getattr(native, function)(ctypes.byref(self.c))
        assert status == 0, "native.py and the compiled native.cpp are not of one version"


def attend(call: Any, result: Any, *, keep: bool) -> None:
    """Forward: fill ``result``."""
    if not result.output.numel():
        return
    arguments = _Arguments(call)
    arguments.out_rows("output", result.output)
    arguments.out("new_memory", result.memory)
    if call.denominator != "none":
        arguments.out("total", result.total)
        arguments.out("new_normaliser", result.normaliser)
    exact = []
    for name, to in (("scale", result.scale), ("new_stabiliser", result.stabiliser)):
        if to.numel():
            exact.append((to, arguments.out(name, torch.empty_like(to, dtype=torch.float64))))
    if keep:
        arguments.out("saved", result.memories)
    arguments.run("linear_rope_forward")
    for to, x in exact:
        to.copy_(x)


def differentiate(
    call: Any,
    result: Any,
    gradients: Any,
    grad_output: Tensor | None,
    grad_total: Tensor | None,
    grad_memory: Tensor | None,
    grad_normaliser: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """Backward: fill ``gradients`` but for those of exponents, whose parts (B, H, N) it returns where there are any."""
    arguments = _Arguments(call)
    arguments.rows("output", result.output)
    arguments.flat("total", result.total, torch.float32)
    arguments.flat("saved", result.memories, torch.float32)
    arguments.rows("grad_output", torch.zeros_like(result.output) if grad_output is None else grad_output)
    for name, x in (("total", grad_total), ("new_memory", grad_memory), ("new_normaliser", grad_normaliser)):
        arguments.flat(f"grad_{name}", x, torch.float32)
    copies = []
    for name in ("q", "k", "v", "denominator_q", "denominator_k"):
        to = getattr(gradients, name)
        if to is None:
            continue
        fits = to.dtype == torch.float32 and to.stride(-1) == 1
        x = arguments.out_rows(f"grad_{name}", to if fits else torch.empty(to.shape, dtype=torch.float32))
        if not fits:
            copies.append((to, x))
    for name in ("memory", "normaliser"):
        to = getattr(gradients, name)
        if to is not None:
            x = arguments.out(f"grad_{name}", torch.empty(to.shape, dtype=torch.float32))
            copies.append((to, x))
    exponents = None
    if any(x is not None for x in (call.query_scale, call.key_scale, call.log_decay)):
        exponents = tuple(arguments.out(name, torch.empty(call.q.shape[:3])) for name in ("of_q", "of_k"))
    arguments.run("linear_rope_backward")
    for to, x in copies:
        to.copy_(x)
    return exponents
