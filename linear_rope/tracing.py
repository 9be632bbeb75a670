"""Whether PyTorch runs in plain eager mode, on ordinary tensors.

Compilers, function transforms, forward-mode derivatives and dispatch modes (fake tensors, counters) need operations
that they can follow: no derivative by hand, no memory used again. PyTorch has no public question for all of them.
"""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils import _python_dispatch


def is_eager(*tensors: Tensor) -> bool:
    """False under a compiler, a function transform, a dual level or a dispatch mode, and for tensor subclasses."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or getattr(forward_ad, "_current_level", -1) >= 0
        or _python_dispatch._get_current_dispatch_mode() is not None
        or any(type(x) not in (Tensor, nn.Parameter) for x in tensors)
    )


def in_backward_pass() -> bool:
    """Whether autograd is going through a graph, as it is when activation checkpointing repeats a forward pass."""
    return torch._C._current_graph_task_id() != -1
