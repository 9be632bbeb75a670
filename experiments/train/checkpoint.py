"""Checkpoints: written whole or not at all.

``<run>/checkpoint/step<k>/`` holds ``model.safetensors``, ``optimizer.pt`` (tensors and plain values only) and
``manifest.json`` with the step and the sha256 of both. A new one is written under another name, flushed and renamed;
the one before it is kept until then and beyond, so that a damaged newest one costs some steps and not the run.
Nothing that is loaded is executed.

A safetensors file holds tensors that share no memory and nothing else. So of weights that a model has under several
names each gets its own copy, and extra state of another type (``get_extra_state`` of a module) is what torch.save makes
of it, as a tensor of bytes under a name that says so; it is read as plain values and tensors only.
"""

import hashlib
import io
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec import Struct
from safetensors.torch import load, save
from torch import Tensor, nn

from experiments.config import Config
from experiments.records.files import LARGEST_CHECKPOINT, read_file, sync_directory, write_atomically
from experiments.records.record import read_record, write_record

KEPT = 2
"""the newest, and the one before it in case it is damaged"""
WEIGHTS, OPTIMIZER = "model.safetensors", "optimizer.pt"
PICKLED = "pickled:"
"""before the name of what is no tensor"""


class Checkpoint(NamedTuple):
    """A checkpoint that was read and matched its checksums."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    weights_sha256: str
    """of the file of ``model``"""


class _Manifest(Struct):
    step: int
    sha256: dict[str, str]


def checkpoint_path(directory: Path, step: int) -> Path:
    """The checkpoint of ``step`` in a run's directory of checkpoints."""
    return directory / f"step{step:08d}"


def save_checkpoint(
    directory: Path,
    step: int,
    model: dict[str, Any],
    optimizer: dict[str, Any],
    kept: int = KEPT,
    every: int = 1,
    forever: int | None = None,
) -> None:
    """Write the state dicts of ``step`` into ``directory``, then remove all but it and the one before.

    The last ``kept`` of those at multiples of ``every`` steps stay too: where a run was stopped decides nothing. So
    does that of step ``forever``.

    Raises OSError if it cannot be written; those that are there stay, and nothing half written does.
    """
    for leftover in directory.glob(".step*.tmp"):
        shutil.rmtree(leftover)
    buffer = io.BytesIO()
    torch.save(optimizer, buffer)
    contents = {WEIGHTS: weights_as_bytes(model), OPTIMIZER: buffer.getvalue()}
    manifest = _Manifest(step, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})
    final, temporary = checkpoint_path(directory, step), directory / f".step{step:08d}.tmp"
    try:
        temporary.mkdir(parents=True)
        for name, content in contents.items():
            write_atomically(temporary / name, content)
        write_record(temporary / "manifest.json", manifest)
        if final.exists():
            # One that was passed over: damaged, or of a step that is trained again because its records are gone.
            shutil.rmtree(final)
        os.replace(temporary, final)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for changed in (directory, directory.parent):
        sync_directory(changed)
    there = _checkpoints(directory)
    steps = [one for one in there if one <= step]
    kept_steps = {*steps[-KEPT:], *[one for one in steps if one % every == 0][-kept:], forever}
    # A later one was passed over, or training would have gone on from it.
    for other in there:
        if other not in kept_steps or other > step:
            shutil.rmtree(checkpoint_path(directory, other))


def load_newest_checkpoint(
    directory: Path, model: nn.Module, last_step: int | None = None
) -> tuple[Checkpoint | None, list[str]]:
    """The newest undamaged checkpoint of ``model``, or None, and a sentence about each one that was passed over.

    Those of later steps than ``last_step`` are passed over. The model itself is not changed.
    """
    notes, here = list[str](), shapes(model.state_dict()).items()
    for step in reversed(_checkpoints(directory)):
        path = checkpoint_path(directory, step)
        if last_step is not None and step > last_step:
            notes.append(f"checkpoint {path.name} was passed over: the records before it are not whole")
            continue
        try:
            checkpoint = read_checkpoint(path)
            differing = sorted({name for name, _ in here ^ shapes(checkpoint.model).items()})
            if not differing:
                return checkpoint, notes
            problem = f"its weights are of another model ({differing[0]} and {len(differing) - 1} more differ)"
        except (ValueError, OSError) as error:
            problem = str(error)
        notes.append(f"checkpoint {path.name} is damaged and was passed over: {problem}")
    return None, notes


def load_average(directory: Path, model: nn.Module, config: Config) -> int:
    """Give a model the mean of each parameter over a run's last checkpoints (Vaswani et al. 2017, section 6.1).

    ``directory`` is the run's. What is no parameter, such as random features, is the newest one's. Returns how many
    checkpoints the mean is of: fewer than are kept if some are damaged or were never made. Raises ValueError or OSError
    if the final one is not whole.
    """
    checkpoints, every = directory / "checkpoint", config.checkpoint_every
    newest = read_checkpoint(checkpoint_path(checkpoints, config.steps)).model
    names = dict(model.named_parameters(remove_duplicate=False))
    sums, found = {name: newest[name].double() for name in names}, 1
    for step in range(every, config.steps, every)[-(config.kept_checkpoints - 1) :]:
        with suppress(ValueError, OSError):
            weights = read_checkpoint(checkpoint_path(checkpoints, step)).model
            sums = {name: total + weights[name] for name, total in sums.items()}
            found += 1
    means = {name: (total / found).to(newest[name].dtype) for name, total in sums.items()}
    model.load_state_dict(newest | means)
    return found


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a directory. Raises ValueError or OSError if it is not whole."""
    manifest = read_record(path / "manifest.json", _Manifest)
    if manifest.sha256.keys() != {WEIGHTS, OPTIMIZER} or path != checkpoint_path(path.parent, manifest.step):
        raise ValueError("manifest.json is not that of this checkpoint")
    contents = {name: read_file(path / name, "remove the checkpoint", LARGEST_CHECKPOINT) for name in manifest.sha256}
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != manifest.sha256[name]:
            raise ValueError(f"{name} does not match its checksum")
    try:
        optimizer = torch.load(io.BytesIO(contents[OPTIMIZER]), map_location="cpu", weights_only=True)
        return Checkpoint(manifest.step, weights_from_bytes(contents[WEIGHTS]), optimizer, manifest.sha256[WEIGHTS])
    except Exception as error:  # the parsers of these formats have no common one for bytes that are none of theirs
        raise ValueError(f"its content cannot be read ({type(error).__name__})") from None


def _checkpoints(directory: Path) -> list[int]:
    """The steps of the checkpoints there are, whole or not, ascending."""
    names = (re.fullmatch(r"step([0-9]{8,12})", path.name) for path in directory.glob("step*"))
    return sorted(int(name[1]) for name in names if name)


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
    grows = "_extra_state"  # how PyTorch ends its name
    return {name: None if name.endswith(grows) else (value.shape, value.dtype) for name, value in state_dict.items()}


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
