"""Looking at a model without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and every module's own flag back afterwards: parts of a model may have been frozen."""
    training = {module: module.training for module in model.modules()}
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module, flag in training.items():
            module.training = flag
