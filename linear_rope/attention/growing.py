"""Tensors that grow by some positions at a time, without a copy of all that was there before."""

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# The newest view of each buffer. It alone may grow where it lies: what an older one would write over is in use.
_NEWEST = WeakTensorKeyDictionary()


def appended(x: Tensor, new: Tensor) -> Tensor:
    """``torch.cat((x, new), dim=-2)`` of (..., N, D); without gradients in time that does not depend on N, on average.

    The result is a view of a buffer with room for as many positions again, which the next call writes into.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or x.dtype != new.dtype:
        return torch.cat((x, new), dim=-2)
    before, length = x.shape[-2], x.shape[-2] + new.shape[-2]
    buffer: Tensor | None = _NEWEST.pop(x, None)
    # PyTorch lets nobody write to a tensor of inference mode outside it.
    if buffer is None or buffer.shape[-2] < length or buffer.is_inference() != torch.is_inference_mode_enabled():
        buffer = x.new_empty(*x.shape[:-2], 2 * length, x.shape[-1])
        buffer[..., :before, :] = x
    buffer[..., before:length, :] = new
    return _newest(buffer, length)


def shortened(x: Tensor, length: int) -> Tensor:
    """The first positions of what :func:`appended` gave, to go on from; those after them are written over."""
    buffer: Tensor | None = _NEWEST.pop(x, None)
    return x[..., :length, :] if buffer is None else _newest(buffer, length)


def _newest(buffer: Tensor, length: int) -> Tensor:
    view = buffer[..., :length, :]
    _NEWEST[view] = buffer
    return view
