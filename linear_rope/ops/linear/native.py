"""Linear attention in C++ (cpp/), on a CPU: of causal calls the same result and gradients as blockwise.py's."""

import ctypes
import hashlib
import os
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linear_rope.features.registry import FORMULAS
from linear_rope.ops.linear.call import (
    Call,
    Gradients,
    Result,
    Upstream,
    check_partners,
    empty_gradients,
    new_exponents_of_states,
    put_exponents,
)
from linear_rope.ops.linear.call import empty_result as any_result

CHUNK = 32
SAVED = 8
"""chunks between the states that are kept for the backward pass; both as in cpp/native.cpp"""
PANEL = 16

LIBRARY = Path(__file__).with_name("libnative.so")
"""what setup.py makes of native.cpp, which lies in cpp/ beside it"""

FORMULA_NAMES = ("given", "elu+1", "relu", "favor+")
TYPES = {torch.float32: "float", torch.float64: "double"}
DENOMINATORS = ("unrotated", "rotated", "none")
NO_MEMORY = 2
"""of the Status in native.cpp; 0 is done"""


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
        *_fields(ctypes.c_long, "size batch heads length keys width values features"),
        *_fields(ctypes.c_long, "formula hyperbolic paired denominator"),
        ("eps", ctypes.c_double),
        *_fields(_Rows, "q k v denominator_q denominator_k"),
        *_fields(
            ctypes.c_void_p,
            "query_scale key_scale log_decay pair_decay denominator_decay padding q_rotation k_rotation",
        ),
        *_fields(ctypes.c_long, "q_rotation_batch k_rotation_batch"),
        *_fields(ctypes.c_void_p, "memory key_sum stabiliser projection"),
        ("output", _Rows),
        *_fields(ctypes.c_void_p, "total new_memory new_key_sum saved scale new_stabiliser"),
        ("grad_output", _Rows),
        *_fields(ctypes.c_void_p, "grad_total grad_new_memory grad_new_key_sum"),
        *_fields(_Rows, "grad_q grad_k grad_v grad_denominator_q grad_denominator_k"),
        *_fields(ctypes.c_void_p, "of_q of_k of_states grad_memory grad_key_sum parallel"),
        ("threads", ctypes.c_long),
    )


def library() -> ctypes.CDLL | None:
    """The compiled native.cpp, or None where there is none for this processor, or it is switched off."""
    return None if _is_off() else _loaded()[0]


def _is_off() -> bool:
    return os.environ.get("LINEAR_ROPE_NATIVE") == "0"


def description() -> str:
    """Whether native.cpp is used, and if not, why not."""
    if _is_off():
        return "switched off (LINEAR_ROPE_NATIVE=0)"
    native, what = _loaded()
    return what if native is None or _parallel() else f"{what}, on one thread: PyTorch brings no OpenMP that it can use"


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    if not LIBRARY.exists():
        return None, "not built: no C++ compiler (GCC 12, Clang) was found, or it failed, at installation"
    try:
        native = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        return None, f"not usable ({error})"
    if not native.linear_rope_supported():
        return None, "not usable: built for another processor"
    if _is_stale(native):
        return None, "not usable: built from other sources than linear_rope/ops/linear/cpp; pip install -e . again"
    native.linear_rope_target.restype = ctypes.c_char_p
    return native, f"C++ for {native.linear_rope_target().decode()}"


def _is_stale(native: ctypes.CDLL) -> bool:
    """Whether it was built from other sources than those beside it, as after a change of these alone."""
    sources = LIBRARY.with_name("cpp")
    if not sources.is_dir():
        return False
    if not hasattr(native, "linear_rope_sources"):
        return True  # from before it told
    native.linear_rope_sources.restype = ctypes.c_char_p
    return bool(native.linear_rope_sources().decode() != sources_sha256(sources))


def sources_sha256(directory: Path) -> str:
    """What a library knows of the C++ that it was built from; setup.py counts the same."""
    sources = sorted(path for path in directory.iterdir() if path.suffix in (".cpp", ".h"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


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
    if not keep or not call.causal:
        return any_result(call)
    return any_result(call, memories=call.new(*_saved_shape(call), dtype=call.dtype))


def _saved_shape(call: Call) -> tuple[int, ...]:
    batch, heads, length, _ = call.q.shape
    features = _padded(call.features)
    state = features * _padded(call.v.shape[-1]) + features + PANEL
    # An upper bound that a compiler can reckon with, and never 1: it would make an axis of one a case of its own.
    return length // (CHUNK * SAVED) + 2, batch, heads, state


def _padded(count: int) -> int:
    return (count + PANEL - 1) // PANEL * PANEL


@lru_cache(maxsize=64)
def _sizes_and_settings(
    sizes: tuple[int, ...], formula: str, numbers: tuple[float, ...], denominator: str, threads: int
) -> _Call:
    """The sizes and settings of a call, which are those of many."""
    hyperbolic, paired, eps = FORMULAS[formula].settings(numbers)
    numbered = FORMULA_NAMES.index(formula), hyperbolic, paired, DENOMINATORS.index(denominator), eps
    return _Call(ctypes.sizeof(_Call), *sizes, *numbered, threads=threads, parallel=_parallel())


class _Arguments:
    """A _Call under construction, and the tensors that it points to.

    Here alone is checked what pointers need: every tensor's shape, dtype, device and strides, and which there are.
    """

    def __init__(self, call: Call) -> None:
        check_partners(call)
        self.call, self.dtype = call, call.dtype
        self.kept: list[Tensor] = []
        batch, heads, length, width = call.q.shape
        keys = length if call.causal else call.k.shape[2]
        self.queries, self.keys = (batch, heads, length), (batch, heads, keys)
        self.values, self.features = call.v.shape[-1], call.features
        self.memory = (batch, heads, self.features, self.values)
        sizes = batch, heads, length, keys, width, self.values, self.features
        settings = call.formula, tuple(call.numbers), call.denominator, torch.get_num_threads()
        self.c = _Call.from_buffer_copy(_sizes_and_settings(sizes, *settings))
        self.rows("q", call.q, *self.queries, width)
        self.rows("k", call.k, *self.keys, width)
        self.rows("v", call.v, *self.keys, self.values)
        self.rows("denominator_q", call.denominator_q, *self.queries, self.features)
        self.rows("denominator_k", call.denominator_k, *self.keys, self.features)
        self.flat("query_scale", call.query_scale, torch.float64, *self.queries)
        self.flat("key_scale", call.key_scale, torch.float64, *self.keys)
        self.flat("log_decay", call.log_decay, torch.float64, *self.queries)
        self.flat("pair_decay", call.pair_decay, self.dtype, *self.queries, self.features // 2)
        self.flat("denominator_decay", call.denominator_decay, self.dtype, *self.queries)
        self.flat("padding", call.padding, torch.bool, batch, 1, self.keys[2], 1)
        self.state(call.memory, call.key_sum, call.stabiliser)
        for name, count in (("q_rotation", length), ("k_rotation", self.keys[2])):
            rotation = getattr(call, name)
            if rotation is not None:
                one = rotation.shape[0] == 1
                self.flat(name, rotation, self.dtype, 1 if one else batch, 1, count, self.features // 2, 2)
                setattr(self.c, f"{name}_batch", 0 if one else count * self.features)
        if call.constant is not None:
            rows = self.features // (2 if self.c.hyperbolic or self.c.paired else 1)
            self.flat("projection", call.constant, self.dtype, rows, width)

    def state(self, memory: Tensor | None, key_sum: Tensor | None, stabiliser: Tensor | None) -> None:
        """The sums before the first position, or after the last."""
        self.flat("memory", memory, self.dtype, *self.memory)
        self.flat("key_sum", key_sum, self.dtype, *self.memory[:3])
        self.flat("stabiliser", stabiliser, torch.float64, *self.memory[:2], 1)

    def flat(self, name: str, x: Tensor | None, dtype: torch.dtype, *shape: float) -> None:
        if x is not None:
            _check(name, x, shape)
            if x.dtype != dtype or not x.is_contiguous() or x.is_neg():
                x = x.to(dtype).contiguous().resolve_neg()
            self.out(name, x)

    def rows(self, name: str, x: Tensor | None, *shape: float) -> None:
        if x is not None:
            _check(name, x, shape)
            if x.dtype != self.dtype or x.is_neg():
                x = x.to(self.dtype).resolve_neg()
            self.out_rows(name, x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous())

    def out(self, name: str, x: Tensor) -> Tensor:
        """A contiguous tensor of this file's own, which is written to."""
        setattr(self.c, name, self.pointer(name, x))
        return x

    def out_rows(self, name: str, x: Tensor) -> Tensor:
        """Likewise one whose last axis is contiguous."""
        setattr(self.c, name, _Rows(self.pointer(name, x), *x.stride()[:3]))
        return x

    def pointer(self, name: str, x: Tensor) -> int:
        self.kept.append(x)
        pointer = x.data_ptr()
        if not pointer and x.numel():
            raise ValueError(f"{name} is a {type(x).__name__}, which holds no numbers itself; give plain tensors")
        return pointer

    def run(self, function: str) -> None:
        native, _ = _loaded()
        way = "" if self.call.causal else "both_ways_"
        assert native is not None
        status = getattr(native, f"linear_rope_{way}{function}_{TYPES[self.dtype]}")(ctypes.byref(self.c))
        if status == NO_MEMORY:
            raise MemoryError("the native kernel found no memory for its work; give fewer sequences, heads or features")
        if status:
            raise RuntimeError(f"{LIBRARY} and native.py are not of one version; pip install -e . again")


def _check(name: str, x: Tensor, shape: tuple[float, ...]) -> None:
    if x.shape != shape or not x.is_cpu:
        raise ValueError(f"{name} is {tuple(x.shape)} on {x.device}; the native kernel needs {shape} on a CPU")


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    result = empty_result(call, keep=keep)
    if not result.output.numel():
        return result
    arguments = _Arguments(call)
    arguments.out_rows("output", result.output)
    arguments.out("new_memory", result.memory)
    if call.has_denominator:
        arguments.out("total", result.denominator)
        arguments.out("new_key_sum", result.key_sum)
    exact = []
    for name, to in (("scale", result.scale), ("new_stabiliser", result.stabiliser)):
        if to.numel():
            exact.append((to, arguments.out(name, torch.empty(to.shape, dtype=torch.float64, device="cpu"))))
    if keep and call.causal:
        arguments.out("saved", result.memories)
    arguments.run("forward")
    for to, x in exact:
        to.copy_(x)
    return result


def step(call: Call) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The output of one position, and the memory, key_sum and stabiliser (float64) after it.

    :func:`attend` for decoding, where what is made around the kernel takes longer than the kernel.
    """
    arguments, like = _Arguments(call), call.q.new_empty
    batch, heads, _ = arguments.queries
    dtype, memory = arguments.dtype, arguments.memory
    output = arguments.out_rows("output", like((batch, heads, 1, arguments.values), dtype=dtype))
    new_memory = arguments.out("new_memory", like(memory, dtype=dtype))
    key_sum = stabiliser = None
    if call.has_denominator:
        key_sum = arguments.out("new_key_sum", like(memory[:3], dtype=dtype))
    if call.has_scale:
        stabiliser = arguments.out("new_stabiliser", like((batch, heads, 1), dtype=torch.float64))
    arguments.run("forward")
    return output, new_memory, key_sum, stabiliser


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward; the gradients of the state after the last position are those of causal calls."""
    gradients, arguments = empty_gradients(call), _Arguments(call)
    queries, keys, memory = arguments.queries, arguments.keys, arguments.memory
    for name, x in (("output", result.output), ("grad_output", of.output)):
        arguments.rows(name, x, *queries, arguments.values)
    arguments.flat("total", result.denominator if call.has_denominator else None, call.dtype, *queries)
    arguments.flat("grad_total", of.denominator, call.dtype, *queries)
    arguments.flat("grad_new_memory", of.memory, call.dtype, *memory)
    arguments.flat("grad_new_key_sum", of.key_sum, call.dtype, *memory[:3])
    if call.causal:
        arguments.flat("saved", result.memories, call.dtype, *_saved_shape(call))
    else:
        arguments.state(*(x if x.numel() else None for x in (result.memory, result.key_sum, result.stabiliser)))
    copies = []
    for name in ("q", "k", "v", "denominator_q", "denominator_k"):
        to = getattr(gradients, name)
        if to is not None:
            fits = to.dtype == call.dtype and to.stride(-1) == 1
            x = to if fits else torch.empty(to.shape, dtype=call.dtype, device="cpu")
            arguments.out_rows(f"grad_{name}", x)
            copies += [] if fits else [(to, x)]
    for name in ("memory", "key_sum"):
        to = getattr(gradients, name)
        if to is not None:
            copies.append((to, arguments.out(f"grad_{name}", torch.empty(to.shape, dtype=call.dtype, device="cpu"))))
    exponents = []
    of_states = new_exponents_of_states(call, result, of, CHUNK * SAVED)
    if call.has_exponents:
        exponents = [
            arguments.out(name, torch.empty((*of_states.shape[:-1], shape[-1]), dtype=call.dtype, device="cpu"))
            for name, shape in (("of_q", queries), ("of_k", keys))
        ]
    if call.log_decay is not None:
        arguments.out("of_states", of_states)
    arguments.run("backward")
    for to, x in copies:
        to.copy_(x)
    if exponents:
        of_q, of_k = exponents
        put_exponents(gradients, call, of_q, of_k, of_states, CHUNK * SAVED)
    return gradients
