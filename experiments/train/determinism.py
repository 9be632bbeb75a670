"""Which operations give other bits when they are run again, by PyTorch's own account."""

import warnings
from collections.abc import Callable

import torch


def nondeterministic_operations(compute: Callable[[], object]) -> list[str]:
    """Run ``compute`` and return what PyTorch warns of in it, one entry an operation, in the order of first use.

    PyTorch's list covers what adds in an order that is not fixed and cuBLAS without a workspace of its own; it says
    nothing of algorithms that are chosen by timing.
    """
    before = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.set_deterministic_debug_mode("warn")
        try:
            compute()
        finally:
            torch.set_deterministic_debug_mode(before)
    found: dict[str, None] = {}
    for message in (str(warning.message) for warning in caught):
        name, told, _ = message.partition(" does not have a deterministic implementation")
        if "determinis" in message:
            found["matrix products of cuBLAS" if "CuBLAS" in name else name if told else name.partition(".")[0]] = None
    return list(found)
