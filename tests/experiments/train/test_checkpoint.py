import hashlib
import json
import os
from typing import Any

import pytest
import torch
from torch import nn

from experiments.train.checkpoint import load_newest_checkpoint, save_checkpoint


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def states(steps: int) -> list[dict[str, Any]]:
    return [each.state_dict() for each in trained(steps)]


def test_the_newest_two_are_kept_and_a_new_one_outlives_damaged_later_ones(tmp_path):
    for step in (7, 8, 9):
        save_checkpoint(tmp_path, step, *states(step))
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["step00000008", "step00000009"]
    for path in kept:
        (path / "model.safetensors").write_bytes(b"")
    save_checkpoint(tmp_path, 2, *states(2))
    checkpoint, notes = load_newest_checkpoint(tmp_path, trained(0)[0])
    assert (checkpoint.step, notes) == (2, [])


def change_a_weight(path):
    """A file that is read as any other, whose last number is another."""
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def edit_manifest(path, **changes):
    manifest = path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: change_a_weight(path / "model.safetensors"),
        lambda path: (path / "manifest.json").write_text("[]"),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "optimizer.pt").unlink(),
        lambda path: edit_manifest(path, step=7),
        lambda path: edit_manifest(path, sha256={"../../model.safetensors": "0" * 64}),
    ],
)
def test_any_damage_is_told_and_the_checkpoint_before_is_loaded(tmp_path, damage):
    assert load_newest_checkpoint(tmp_path, trained(0)[0]) == (None, [])
    for step in (1, 2):
        save_checkpoint(tmp_path, step, *states(step))
    damage(tmp_path / "step00000002")
    checkpoint, notes = load_newest_checkpoint(tmp_path, trained(0)[0])
    assert checkpoint.step == 1
    assert len(notes) == 1
    assert notes[0].startswith("checkpoint step00000002 is damaged and was passed over: ")


def test_a_checkpoint_of_another_model_is_passed_over(tmp_path):
    save_checkpoint(tmp_path, 1, *states(1))
    checkpoint, notes = load_newest_checkpoint(tmp_path, nn.Linear(3, 4))
    assert checkpoint is None
    assert "its weights are of another model (bias and 1 more differ)" in notes[0]


class Payload:
    """What a pickle that runs code looks like."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_nothing_in_a_checkpoint_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_checkpoint(tmp_path, 1, *states(1))
    path = tmp_path / "step00000001"
    torch.save(Payload(), path / "optimizer.pt")
    files = ("model.safetensors", "optimizer.pt")
    edit_manifest(path, sha256={name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in files})
    checkpoint, notes = load_newest_checkpoint(tmp_path, trained(0)[0])
    assert checkpoint is None
    assert "its content cannot be read" in notes[0]
    assert not (tmp_path / "executed").exists()


def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it_and_nothing_half_written(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 1, *states(1))
    original = os.fsync
    calls = []

    def full_at_the_second_file(descriptor):
        calls.append(descriptor)
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        original(descriptor)

    monkeypatch.setattr("os.fsync", full_at_the_second_file)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, *states(2))
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step00000001"]
    assert load_newest_checkpoint(tmp_path, trained(0)[0])[0].step == 1
