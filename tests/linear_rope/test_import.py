"""``import linear_rope`` is light, and has what the documentation promises."""

import importlib.resources
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import linear_rope
from linear_rope import functional
from linear_rope.ops.linear.state import State

PROGRAM = """
import sys
import einops, torch
before = set(sys.modules)
import linear_rope
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def test_import_loads_torch_and_einops_only() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert set(run.stdout.split()) - sys.stdlib_module_names == {"linear_rope"}
    assert run.stderr == ""


def test_public_names() -> None:
    promised = {
        "LinearRoPEAttention", "SoftmaxRoPEAttention", "linear_attention", "apply_rope", "FavorPlus", "EluPlusOne",
        "ReluFeatures", "CausalLM", "Encoder", "EncoderDecoder", "ModelConfig", "Decay", "SelectiveRotation", "YaRN",
    }  # fmt: skip
    assert promised <= set(linear_rope.__all__)
    assert all(getattr(linear_rope, name).__doc__ for name in linear_rope.__all__)
    assert importlib.resources.files(linear_rope).joinpath("py.typed").is_file()


def test_the_paths_of_before_lead_to_the_same() -> None:
    assert functional.linear_attention is linear_rope.linear_attention
    assert functional.kernels is linear_rope.kernels
    assert linear_rope.features.Hedgehog is not None  # a part that nobody imported by its name
    with pytest.raises(AttributeError, match="'linear_rope' has no attribute 'nothing'"):
        linear_rope.nothing  # noqa: B018


def test_a_state_that_was_saved_before_is_read(tmp_path: Path) -> None:
    """Its class was in another module, which is no more."""
    torch.save(State(torch.ones(2), None, None), tmp_path / "new.pt")
    with zipfile.ZipFile(tmp_path / "new.pt") as new, zipfile.ZipFile(tmp_path / "old.pt", "w") as old:
        for name in new.namelist():
            content = new.read(name).replace(b"linear_rope.ops.linear.state\n", b"linear_rope.functional.recurrent\n")
            old.writestr(name, content)
    state = torch.load(tmp_path / "old.pt")
    assert isinstance(state, State)
    assert torch.equal(state.memory, torch.ones(2))


def test_names_of_pytorch_that_are_not_public_stand_in_one_file() -> None:
    (package,) = linear_rope.__path__
    private = re.compile(r"\btorch(\.\w+)*\._[a-z]|from torch[\w.]* import _", re.IGNORECASE)
    found = {path.name for path in Path(package).rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert found == {"tracing.py"}
