"""The causal form in C++ (cpp/), on a CPU: the same call, result and gradients as causal.py's."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linear_rope.functional.call import Call, Gradients, Result, empty_gradients, put_exponents
from linear_rope.functional.call import empty_result as any_result

CHUNK = 32
SAVED = 8
"""chunks between the states that are kept for the backward pass; both as in cpp/native.cpp"""
PANEL = 16

LIBRARY = Path(__file__).with_name("libnative.so")
"""what setup.py makes of native.cpp"""

FORMULAS = ("given", "elu+1", "relu", "favor+")
TYPES = {torch.float32: "float", torch.float64: "double"}
DENOMINATORS = ("unrotated", "rotated", "none")


class _Rows(ctypes.Structure):
    """A tensor (B, H, N, ·) whose last axis is contiguous."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_long),
        ("head", ctypes.c_long),
        ("position", ctypes.c_long),
    )


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


def library() -> ctypes.CDLL | None:
    """The compiled native.cpp, or None where there is none for this processor, or it is switched off."""
    return None if _is_off() else _loaded()[0]


def _is_off() -> bool:
    return os.environ.get("LINEAR_ROPE_NATIVE") == "0"


def description() -> str:
    """Whether native.cpp is used, and if not, why not."""
    return "switched off (LINEAR_ROPE_NATIVE=0)" if _is_off() else _loaded()[1]


def kernels() -> dict[str, str]:
    """What computes causal linear attention here, by the names that ``implementation`` takes.

    Returns:
        "native": the kernel in C++ and the processors that it was compiled for, or why there is none, as in
        {"native": "C++ for x86-64-v3", "chunked": "PyTorch 2.13.0, any device and dtype"}. The environment
        variable LINEAR_ROPE_NATIVE=0 switches it off.
    """
    return {"native": description(), "chunked": f"PyTorch {torch.__version__}, any device and dtype"}


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    if not LIBRARY.exists():
        return None, "not built: no C++ compiler was found when linear_rope was installed"
    try:
        native = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"not usable ({error})"
    if not native.linear_rope_supported():
        return None, "not usable: built for another processor"
    native.linear_rope_target.restype = ctypes.c_char_p
    return native, f"C++ for {native.linear_rope_target().decode()}"


@cache
def _parallel() -> int | None:
    """GOMP_parallel of the OpenMP that PyTorch has loaded, so that both share their threads."""
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def takes(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether native.cpp computes in ``dtype`` on a device."""
    return device.type == "cpu" and dtype in TYPES and library() is not None


def empty_result(call: Call, *, keep: bool) -> Result:
    """Memory for a result, with that for :func:`differentiate` if ``keep``: states, as native.cpp lays them out."""
    if not keep:
        return any_result(call)
    batch, heads, length, _ = call.q.shape
    features = _padded(call.features)
    state = features * _padded(call.v.shape[-1]) + features + PANEL
    stretches = length // (CHUNK * SAVED) + 1  # one too many at times, which a compiler can reckon with
    return any_result(
        call, memories=torch.empty(stretches, batch, heads, state, dtype=call.dtype, device=call.q.device)
    )


def _padded(count: int) -> int:
    return (count + PANEL - 1) // PANEL * PANEL


class _Arguments:
    """A _Call under construction, and the tensors that it points to."""

    def __init__(self, call: Call) -> None:
        self.dtype = call.dtype
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
            self.flat(name, getattr(call, name), self.dtype)
        self.flat("padding", call.padding, torch.bool)
        for name in ("q_rotation", "k_rotation"):
            rotation = getattr(call, name)
            if rotation is not None:
                self.flat(name, rotation, self.dtype)
                self.set(**{f"{name}_batch": 0 if rotation.shape[0] == 1 else length * call.features})
        if call.constant is not None:
            constant = call.constant.to(self.dtype)
            self.flat("projection", constant * constant.shape[-1] ** -0.25, self.dtype)

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
            x = x.to(self.dtype)
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
        native, _ = _loaded()
        assert native is not None
        status = getattr(native, f"linear_rope_{function}_{TYPES[self.dtype]}")(ctypes.byref(self.c))
        assert status == 0, "native.py and the compiled native.cpp are not of one version"


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    result = empty_result(call, keep=keep)
    if not result.output.numel():
        return result
    arguments = _Arguments(call)
    arguments.out_rows("output", result.output)
    arguments.out("new_memory", result.memory)
    if call.has_total:
        arguments.out("total", result.total)
        arguments.out("new_normaliser", result.normaliser)
    exact = []
    if call.has_scale:
        for name, to in (("scale", result.scale), ("new_stabiliser", result.stabiliser)):
            exact.append((to, arguments.out(name, torch.empty(to.shape, dtype=torch.float64))))
    if keep:
        arguments.out("saved", result.memories)
    arguments.run("forward")
    for to, x in exact:
        to.copy_(x)
    return result


def differentiate(
    call: Call,
    result: Result,
    grad_output: Tensor | None,
    grad_total: Tensor | None,
    grad_memory: Tensor | None,
    grad_normaliser: Tensor | None,
) -> Gradients:
    """Backward: from the gradients of the result's output, total, memory and normaliser."""
    gradients = empty_gradients(call)
    if not result.output.numel():
        return gradients
    arguments = _Arguments(call)
    arguments.rows("output", result.output)
    arguments.rows("grad_output", torch.zeros_like(result.output) if grad_output is None else grad_output)
    arguments.flat("total", result.total, call.dtype)
    arguments.flat("saved", result.memories, call.dtype)
    for name, x in (("total", grad_total), ("new_memory", grad_memory), ("new_normaliser", grad_normaliser)):
        arguments.flat(f"grad_{name}", x, call.dtype)
    copies = []
    for name in ("q", "k", "v", "denominator_q", "denominator_k"):
        to = getattr(gradients, name)
        if to is not None:
            fits = to.dtype == call.dtype and to.stride(-1) == 1
            x = arguments.out_rows(f"grad_{name}", to if fits else torch.empty(to.shape, dtype=call.dtype))
            copies += [] if fits else [(to, x)]
    for name in ("memory", "normaliser"):
        to = getattr(gradients, name)
        if to is not None:
            copies.append((to, arguments.out(f"grad_{name}", torch.empty(to.shape, dtype=call.dtype))))
    exponents = []
    if call.has_exponents:
        exponents = [arguments.out(name, torch.empty(call.q.shape[:3], dtype=call.dtype)) for name in ("of_q", "of_k")]
    arguments.run("backward")
    for to, x in copies:
        to.copy_(x)
    if exponents:
        of_q, of_k = exponents
        put_exponents(gradients, call, result, of_q, of_k, grad_memory, grad_normaliser)
    return gradients
