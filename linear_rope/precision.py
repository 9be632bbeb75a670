"""What keeps its precision under autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Keeps autocast from lowering the precision of what is computed under it."""
    # PyTorch 2.6 cannot compile the question.
    available = device.type in ("cpu", "cuda") or torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()
