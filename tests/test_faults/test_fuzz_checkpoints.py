"""A checkpoint is loaded as it was saved, or not at all, whatever happened to its files."""

import hashlib
import io
import json
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from experiments.training.checkpoint import load_newest_checkpoint, save_checkpoint

FILES = ("model.safetensors", "optimizer.pt", "manifest.json")
FUZZING = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}

edits = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 2**16), st.integers(0, 255)),
        st.tuples(st.just("cut"), st.integers(0, 2**16), st.integers(1, 64)),
        st.tuples(st.just("insert"), st.integers(0, 2**16), st.binary(min_size=1, max_size=16)),
        st.tuples(st.just("truncate"), st.integers(0, 2**16), st.just(0)),
    ),
    min_size=1,
    max_size=4,
)


def edited(content, changes):
    for kind, place, value in changes:
        place %= len(content) + 1
        if kind == "set":
            content = content[:place] + bytes([value]) + content[place + 1 :]
        elif kind == "cut":
            content = content[:place] + content[place + value :]
        elif kind == "insert":
            content = content[:place] + value + content[place:]
        else:
            content = content[:place]
    return content


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint's directory, its model, and the content of its files."""
    directory = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_checkpoint(directory, 1, model, optimizer)
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


def test_any_edit_of_any_file_is_found(saved, counts):
    directory, _, contents = saved

    @settings(max_examples=4_000, **FUZZING)
    @given(st.sampled_from(FILES), edits)
    def fuzz(name, changes):
        content = edited(contents[name], changes)
        restore(saved, {name: content})
        checkpoint = check_loads_as_saved_or_not(saved)
        if name != "manifest.json":
            assert (checkpoint is None) == (content != contents[name])
        counts["inputs fuzzed"] += 1

    fuzz()
    shutil.rmtree(directory / "step00000001")


def test_content_that_somebody_signed_anew_is_loaded_or_passed_over(saved, counts, capfd):
    """The checksums fit, so the parsers themselves see the bytes."""
    directory, _, contents = saved

    @settings(max_examples=4_000, **FUZZING)
    @given(st.sampled_from(FILES[:2]), st.one_of(edits, st.binary(max_size=200)))
    def fuzz(name, changes):
        content = changes if isinstance(changes, bytes) else edited(contents[name], changes)
        manifest = json.loads(contents["manifest.json"])
        manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
        restore(saved, {name: content, "manifest.json": json.dumps(manifest).encode()})
        checkpoint, notes = load_newest_checkpoint(directory, saved[1])
        assert (checkpoint is None) == bool(notes)
        counts["inputs fuzzed"] += 1

    fuzz()
    shutil.rmtree(directory / "step00000001")


def test_any_manifest_is_survived(saved, counts):
    directory, _, _ = saved
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
    shutil.rmtree(directory / "step00000001")


def test_the_fuzzed_checkpoint_loads_when_nothing_is_changed(saved):
    restore(saved, {})
    checkpoint = check_loads_as_saved_or_not(saved)
    assert checkpoint.step == 1
    assert torch.load(io.BytesIO(saved[2]["optimizer.pt"]), weights_only=True).keys() == checkpoint.optimizer.keys()
