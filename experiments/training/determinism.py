"""Which operations give other bits when they are run again, by PyTorch's own account."""

import re
import warnings
from collections.abc import Callable

import torch


def nondeterministic_operations(compute: Callable[[], object]) -> list[str]:
    """Run ``compute`` and return what PyTorch warns of in it, one entry an operation, in the order of first use.

    PyTorch's list covers what adds in an order that is not fixed and cuBLAS without a workspace of its own; it says
    nothing of algorithms that are chosen by timing.
    """
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            compute()
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
    messages = [str(warning.message) for warning in caught if "determinis" in str(warning.message)]
    return list(dict.fromkeys(_operation(message) for message in messages))


def _operation(message: str) -> str:
    if "CuBLAS" in message:
        return "matrix products of cuBLAS"
    name = re.match(r"(.*?) does not have a deterministic implementation", message)
    return name[1] if name else message.partition(".")[0]
