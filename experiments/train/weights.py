"""The weights of any model as a safetensors file, which holds tensors that share no memory and nothing else.

Of weights that a model has under several names each gets its own copy. Extra state of another type than a tensor
(``get_extra_state`` of a module) is what torch.save makes of it, as a tensor of bytes under a name that says so. It is
read as plain values and tensors only: nothing is executed.
"""

import io
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

PICKLED = "pickled:"
"""before the name of what is no tensor"""
EXTRA_STATE = "_extra_state"
"""how PyTorch ends the name of extra state"""


def weights_as_bytes(state_dict: dict[str, Any]) -> bytes:
    """The file. Raises ValueError as :func:`as_tensors`."""
    return save(as_tensors(state_dict))


def weights_from_bytes(content: bytes) -> dict[str, Any]:
    """The state dict of a file; raises what the libraries do for other bytes."""
    return {
        name.removeprefix(PICKLED): _unpickled(value.numpy().tobytes()) if name.startswith(PICKLED) else value
        for name, value in load(content).items()
    }


def as_tensors(state_dict: dict[str, Any]) -> dict[str, Tensor]:
    """What the file of a state dict holds, by name.

    Raises:
        ValueError: extra state that is more than tensors and plain values.
    """
    found, storages = dict[str, Tensor](), set[int]()
    for name, value in state_dict.items():
        if not isinstance(value, Tensor):
            found[PICKLED + name] = torch.frombuffer(bytearray(_pickled(name, value)), dtype=torch.uint8)
            continue
        tensor = value.contiguous()
        storage = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return found


def shapes(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Shape and dtype of each tensor by its name; extra state, which can grow, has None."""
    return {
        name: None if name.endswith(EXTRA_STATE) else (value.shape, value.dtype) for name, value in state_dict.items()
    }


def _pickled(name: str, value: Any) -> bytes:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        _unpickled(buffer.getvalue())
    except Exception as error:
        raise ValueError(
            f"{name} is a {type(value).__name__} that cannot be kept with the weights ({type(error).__name__}); let "
            "get_extra_state give a tensor, or a dict or list of tensors, numbers and strings"
        ) from None
    return buffer.getvalue()


def _unpickled(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
