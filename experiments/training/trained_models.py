"""The trained models of a comparison, for measurements on them."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from experiments.config import Config
from experiments.console import counted
from experiments.records.record import run_directory, run_status
from experiments.records.schema import Comparison
from experiments.training.checkpoint import load_newest_checkpoint
from experiments.training.models import Trained, build_model
from experiments.variants import get_variant


def measuring_device(comparison: Comparison) -> torch.device:
    """The device that the comparison was trained on, if this machine has one, or else the processor."""
    trained_on_gpu = comparison.machine.get("device", "cpu") != "cpu"
    return torch.device("cuda" if trained_on_gpu and torch.cuda.is_available() else "cpu")


def finished_runs(root: Path, comparison: Comparison) -> list[tuple[str, int]]:
    """Variant and seed of every run that is done."""
    return [run for run in comparison.runs if run_status(root, *run).state == "done"]


def trained_models(
    root: Path,
    comparison: Comparison,
    objective: Trained,
    measured: str,
    notes: list[str],
    before: Collection[tuple[str, int]] = (),
) -> Iterator[tuple[str, int, Any]]:
    """Variant, seed and model, in eval mode, of every finished run.

    A run whose final weights are not there is left out, and a sentence with the subject ``measured`` that says so is
    added to ``notes``, unless it is among those that were measured ``before``. How many are done is printed now and
    then.
    """
    config = Config(**comparison.config)
    settings = {variant.name: variant.settings for variant in comparison.variants}
    for name, seed in counted(finished_runs(root, comparison), f"{measured}: trained models"):
        own = replace(config, **settings[name])
        model = build_model(get_variant(name), own, seed, objective.of(settings[name]))
        checkpoint, _ = load_newest_checkpoint(run_directory(root, name, seed) / "checkpoint", model)
        if checkpoint is None or checkpoint.step != config.steps:
            if (name, seed) not in before:
                notes.append(f"{measured} leaves out {name} seed {seed}: its final weights are damaged or gone")
            continue
        model.load_state_dict(checkpoint.model)
        model.to(measuring_device(comparison)).eval()
        yield name, seed, model
