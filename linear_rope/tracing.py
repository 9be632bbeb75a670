"""The one question to PyTorch that has no public name."""

import torch


def in_backward_pass() -> bool:
    """Whether autograd is going through a graph, as it is when activation checkpointing repeats a forward pass."""
    return torch._C._current_graph_task_id() != -1
