"""What is asked of PyTorch by names that are not public."""

import torch


def in_backward_pass() -> bool:
    """Whether autograd is going through a graph, as it is when activation checkpointing repeats a forward pass."""
    return torch._C._current_graph_task_id() != -1


def is_watched() -> bool:
    """Whether somebody follows operations as they are called: a compiler, a tracer, a function transform or a mode."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )
