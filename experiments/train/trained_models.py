"""The trained models of a comparison, for measurements on them."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.config import Config
from experiments.console import counted
from experiments.records.files import LARGEST_CHECKPOINT, read_file, wrong_file
from experiments.records.record import run_directory, run_status
from experiments.records.schema import Comparison
from experiments.train.checkpoint import load_newest_checkpoint, weights_from_bytes
from experiments.train.models import Shape, build_model
from experiments.variants import get_variant

PACKED_SEED = 0


def measuring_device(comparison: Comparison) -> torch.device:
    """The device that the comparison was trained on, if this machine has one, or else the processor."""
    trained_on_gpu = comparison.machine.get("device", "cpu") != "cpu"
    return torch.device("cuda" if trained_on_gpu and torch.cuda.is_available() else "cpu")


def finished_runs(root: Path, comparison: Comparison) -> list[tuple[str, int]]:
    """Variant and seed of every run that is done."""
    return [run for run in comparison.runs if run_status(root, *run).state == "done"]


def packed_weights(root: Path, variant: str) -> Path:
    """Where packed results have the weights of a variant's run with ``PACKED_SEED``, in bfloat16."""
    return root / "weights" / f"{variant}.safetensors"


def untrained_model(comparison: Comparison, variant: str, seed: int, objective: Shape) -> Any:
    """The model of a run as it begins."""
    (record,) = (each for each in comparison.variants if each.name == variant)
    config = Config.of(comparison.config | record.of_all_layers)
    return build_model(get_variant(variant), config, seed, objective.of(record.settings))


def packed_model(root: Path, comparison: Comparison, variant: str, seed: int, objective: Shape) -> Any:
    """The model of a packed run, in eval mode. Raises ValueError if its weights are not packed, or damaged."""
    path, remedy = packed_weights(root, variant), "take it from where it was packed"
    if seed != PACKED_SEED or not path.exists():
        names = [each.name for each in comparison.variants if packed_weights(root, each.name).exists()]
        there = f"weights of seed {PACKED_SEED} of {', '.join(names)}" if names else "no weights"
        raise ValueError(
            f"{variant} seed {seed} in {root} has no trained model (it is packed there, with {there}); train it again"
        )
    model = untrained_model(comparison, variant, seed, objective)
    content = read_file(path, remedy, LARGEST_CHECKPOINT)
    try:
        model.load_state_dict(weights_from_bytes(content))
    except Exception as error:  # the libraries have no common one for what is no such file, or of another model
        raise wrong_file(str(path), f"holds no weights of this model ({type(error).__name__})", remedy) from None
    return model.eval()


def trained_models(
    root: Path,
    comparison: Comparison,
    objective: Shape,
    measured: str,
    notes: list[str],
    before: Collection[tuple[str, int]] = (),
) -> Iterator[tuple[str, int, Any]]:
    """Variant, seed and model, in eval mode, of every finished run.

    Without final weights one measured ``before`` is skipped; others have packed ones, or none, as ``notes`` say.
    """
    for name, seed in counted(finished_runs(root, comparison), f"{measured}: trained models"):
        model = untrained_model(comparison, name, seed, objective)
        checkpoint, _ = load_newest_checkpoint(run_directory(root, name, seed) / "checkpoint", model)
        if checkpoint is not None and checkpoint.step == comparison.config["steps"]:
            model.load_state_dict(checkpoint.model)
        elif (name, seed) in before:
            continue
        else:
            try:
                model = packed_model(root, comparison, name, seed, objective)
            except ValueError:
                notes.append(f"{measured} leaves out {name} seed {seed}: its final weights are damaged or gone")
                continue
            notes.append(f"{measured} of {name} seed {seed} is by its packed weights, which are rounded to bfloat16")
        yield name, seed, model.to(measuring_device(comparison)).eval()
