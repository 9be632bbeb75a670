"""The export command: a trained model as files that other code reads."""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from experiments.comparison import TrainedRun
from experiments.console import install_command
from experiments.records.files import write_json
from experiments.train.checkpoint import WEIGHTS, weights_as_bytes
from experiments.train.tokens import FILE as TOKENIZER
from experiments.variants import PEER, get_variant
from linear_rope.interop.settings import settings_of
from linear_rope.model import CausalLM

NEEDS = {"hf": ("transformers", "transformers"), "onnx": ("onnxscript", "onnx"), "safetensors": ("safetensors", "")}
"""by format, the module that writes it, and its extra"""


def export(run: TrainedRun, to: str, out: Path | None, *, overwrite: bool) -> int:
    """Write a trained model in a format of ``NEEDS``. Returns the exit status.

    Raises ValueError if there is no such model, the format has none of its kind, or it would overwrite something.
    """
    module, extra = NEEDS[to]
    if find_spec(module) is None:
        raise ValueError(f"--to is {to}, which needs {module}: {install_command(extra)}")
    if get_variant(run.variant).kernel == PEER:
        raise ValueError(f"--variant is {run.variant}, whose attention is of {PEER}, not of this library; give another")
    root = run.comparison.directory
    target = root / "export" / f"{run.variant}-seed{run.seed}-{to}" if out is None else Path(os.path.abspath(out))
    if target.exists() and not target.is_dir():
        raise ValueError(f"--out is {target}, a file; give a directory")
    if not overwrite and target.exists() and any(target.iterdir()):
        raise ValueError(f"{target} holds files already; give another --out, or --overwrite")
    model = run.model()
    if to != "safetensors" and not isinstance(model, CausalLM):
        objective = run.comparison.record.objective.name
        raise ValueError(
            f"--to is {to}, for language models, and {run} was trained for {objective!r}; give safetensors"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        WRITERS[to](model.float(), temporary)
        if (root / TOKENIZER).exists():
            shutil.copyfile(root / TOKENIZER, temporary / TOKENIZER)
        _put(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{target}: {', '.join(sorted(path.name for path in target.iterdir()))}")
    return 0


def _put(temporary: Path, target: Path) -> None:
    """Give what was written its name: all of it at once, or each file, where others lie beside."""
    if target.is_dir() and any(target.iterdir()):
        for path in temporary.iterdir():
            os.replace(path, target / path.name)
    else:
        os.replace(temporary, target)


def _safetensors(model: nn.Module, directory: Path) -> None:
    (directory / WEIGHTS).write_bytes(weights_as_bytes(model.state_dict()))
    encoder: Any = getattr(model, "encoder", model)
    write_json(directory / "config.json", {"kind": type(model).__name__, "model": settings_of(encoder.config)})


def _hf(model: Any, directory: Path) -> None:
    from linear_rope.interop.language_model import LinearRoPEForCausalLM

    LinearRoPEForCausalLM.from_model(model).save_pretrained(directory)


def _onnx(model: Any, directory: Path) -> None:
    from linear_rope.interop.onnx import save

    save(model, directory)


WRITERS: dict[str, Callable[[Any, Path], None]] = {"hf": _hf, "safetensors": _safetensors, "onnx": _onnx}
