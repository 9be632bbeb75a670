"""What is asked of PyTorch by names that are not public."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction

Function = TypeVar("Function", bound=Callable[..., Any])
not_compiled = _disable_dynamo  # torch.compiler.disable, which imports the compiler at the first call and not before


def constant_in_graphs(function: Function) -> Function:
    """What compilers call once and take for a constant: ``torch.compiler.assume_constant_result``, which imports the
    compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def in_backward_pass() -> bool:
    """Whether autograd is going through a graph, as it is when activation checkpointing repeats a forward pass."""
    return torch._C._current_graph_task_id() != -1


def place_in_graph() -> tuple[int, bool]:
    """The number of autograd's next node, or of that where a backward pass is, and whether Python computes it."""
    node = torch._C._current_autograd_node()
    number = torch.autograd._get_sequence_nr() if node is None else node._sequence_nr()
    return number, isinstance(node, BackwardCFunction) and type(node).__name__ != "CompiledFunctionBackward"


def is_watched() -> bool:
    """Whether somebody follows operations as they are called: a compiler, a tracer, a function transform or a mode."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


def is_for_onnx() -> bool:
    """Whether the model is being exported to ONNX, which knows plain operations alone."""
    exporter = sys.modules.get("torch.onnx")  # to ask it would import it
    return exporter is not None and bool(exporter.is_in_onnx_export())


def are_plain(*tensors: object) -> bool:
    """Whether those that are tensors hold their numbers themselves, as what takes pointers needs."""
    return all(type(x) in (Tensor, nn.Parameter) for x in tensors if isinstance(x, Tensor))


def has_tangent(*tensors: object) -> bool:
    """Whether forward-mode differentiation follows one of these, or may: what transforms wrap cannot be seen."""
    if forward_ad._current_level < 0:
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def require(holds: Tensor, otherwise: str) -> None:
    """Raises ValueError unless all of it is True; in a graph, what runs it does."""
    if is_watched():
        torch._assert_async(holds.all(), otherwise)
    elif not holds.all():
        raise ValueError(otherwise)


def driver_version() -> str:
    """Of the GPU's driver: its own number where the system tells it, else of the CUDA that it serves."""
    file = Path("/proc/driver/nvidia/version")
    told = re.search(r"\d+\.\d+[.\d]*", file.read_text(encoding="utf-8")) if file.exists() else None
    return told[0] if told else str(torch._C._cuda_getDriverVersion())  # type: ignore[attr-defined]
