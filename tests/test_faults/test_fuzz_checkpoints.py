"""A checkpoint is loaded as it was saved, or not at all, whatever happened to its files."""

import hashlib
import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from experiments.train.checkpoint import load_newest_checkpoint, save_checkpoint
from tests.test_faults.damage import FUZZING, WORD, inputs_of

FILES = ("model.safetensors", "optimizer.pt", "manifest.json")
PROGRAMS = st.binary(min_size=WORD * 8, max_size=WORD * 8)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint's directory, its model, and the content of its files."""
    directory = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(directory, 1, model.state_dict(), optimizer.state_dict())
    path = directory / "step00000001"
    return directory, model, {name: (path / name).read_bytes() for name in FILES}


def restore(saved, changed):
    directory, _, contents = saved
    path = directory / "step00000001"
    path.mkdir(exist_ok=True)
    for name in FILES:
        (path / name).write_bytes(changed.get(name, contents[name]))


def check_loads_as_saved_or_not(saved):
    directory, model, _ = saved
    checkpoint, notes = load_newest_checkpoint(directory, model)
    if checkpoint is None:
        assert len(notes) == 1
        assert notes[0].startswith("checkpoint step00000001 is damaged and was passed over: ")
    else:
        assert notes == []
        assert all(torch.equal(checkpoint.model[name], tensor) for name, tensor in model.state_dict().items())
    return checkpoint


@pytest.mark.parametrize("signed", [False, pytest.param(True, marks=pytest.mark.full)], ids=["damaged", "signed anew"])
def test_any_damage_of_any_file_is_found(saved, counts, capfd, signed):
    """Where somebody signed the content anew the checksums fit, so the parsers themselves see the bytes."""
    directory, model, contents = saved

    @settings(max_examples=500, **FUZZING)
    @given(st.sampled_from(FILES[:2] if signed else FILES), PROGRAMS)
    def fuzz(name, program):
        for content in inputs_of(program, contents[name]):
            counts["inputs fuzzed"] += 1
            if signed:
                manifest = json.loads(contents["manifest.json"])
                manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
                restore(saved, {name: content, "manifest.json": json.dumps(manifest).encode()})
                checkpoint, notes = load_newest_checkpoint(directory, model)
                assert (checkpoint is None) == bool(notes)
            else:
                restore(saved, {name: content})
                checkpoint = check_loads_as_saved_or_not(saved)
                assert name == "manifest.json" or (checkpoint is None) == (content != contents[name])

    fuzz()


def test_any_manifest_is_survived(saved, counts):
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["step", "sha256", *FILES]), inner),
        max_leaves=8,
    )

    @settings(max_examples=1_000, **FUZZING)
    @given(values)
    def fuzz(manifest):
        restore(saved, {"manifest.json": json.dumps(manifest).encode()})
        assert check_loads_as_saved_or_not(saved) is None
        counts["inputs fuzzed"] += 1

    fuzz()


def test_the_fuzzed_checkpoint_loads_when_nothing_is_changed(saved):
    restore(saved, {})
    checkpoint = check_loads_as_saved_or_not(saved)
    assert checkpoint.step == 1
    assert torch.load(io.BytesIO(saved[2]["optimizer.pt"]), weights_only=True).keys() == checkpoint.optimizer.keys()
