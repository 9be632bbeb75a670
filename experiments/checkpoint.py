"""Checkpoints that are whole or are not there.

``<cell>/checkpoint/step<k>/`` holds ``model.safetensors``, ``optimizer.pt`` (tensors and plain values only) and
``manifest.json`` with the step and the sha256 of both. A new one is written under another name and renamed; the one
before it is kept until then and beyond, so that a damaged newest one costs some steps and not the run.
"""

import hashlib
import io
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import nn

from experiments.record import read_json, write_atomically, write_json

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and matched its checksums."""

    step: int
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any]


def save_checkpoint(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint of ``step`` into ``directory``, then remove all but the newest two."""
    final = directory / f"step{step:08d}"
    temporary = directory / f".step{step:08d}.tmp"
    for leftover in directory.glob(".step*.tmp"):
        shutil.rmtree(leftover)
    temporary.mkdir(parents=True)
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    contents = {
        "model.safetensors": save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}),
        "optimizer.pt": buffer.getvalue(),
    }
    for name, content in contents.items():
        write_atomically(temporary / name, content)
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    write_json(temporary / "manifest.json", {"step": step, "sha256": sha256})
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)
    for old in _checkpoints(directory)[:-KEPT]:
        shutil.rmtree(old)


def load_newest_checkpoint(directory: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest undamaged checkpoint, or None, and a sentence about each one that had to be passed over."""
    notes: list[str] = []
    for path in reversed(_checkpoints(directory)):
        try:
            return _load(path), notes
        except (ValueError, OSError, KeyError) as error:
            notes.append(f"checkpoint {path.name} is damaged and was passed over: {error}")
    return None, notes


def _load(path: Path) -> Checkpoint:
    manifest = read_json(path / "manifest.json")
    contents = {}
    for name, sha256 in manifest["sha256"].items():
        contents[name] = (path / name).read_bytes()
        if hashlib.sha256(contents[name]).hexdigest() != sha256:
            raise ValueError(f"{name} does not match its checksum")
    optimizer = torch.load(io.BytesIO(contents["optimizer.pt"]), map_location="cpu", weights_only=True)
    return Checkpoint(manifest["step"], load(contents["model.safetensors"]), optimizer)


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(directory.glob("step*")) if directory.is_dir() else []
