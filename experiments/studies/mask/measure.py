"""What new draws of a finished model's random features do to its loss, and what claims compare."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from experiments.config import Config
from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Sample, paired, per_seed
from experiments.records.schema import Comparison
from experiments.studies.tables import RUN, Table
from experiments.train.evaluate import evaluate
from experiments.train.objectives import NextToken
from linear_rope.model import CausalLM

NEW_DRAWS = 5
FIRST_NEW_DRAW = 10**6
"""above the number of any draw that training made"""
WINDOWS = 100
REDRAWN = Table("redrawn", RUN | {"draw": int}, {"bits_per_byte": float})
"""draw 0 is the model's own"""


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write redrawn.csv; returns sentences about what could not be measured."""
    config = Config.of(comparison.config)

    @torch.no_grad()
    def losses(variant: str, seed: int, model: CausalLM) -> list[pd.DataFrame]:
        maps: list[Any] = [module for module in model.modules() if hasattr(module, "redraw")]
        own = copy.deepcopy(model.state_dict())
        found = []
        for draw in range(NEW_DRAWS + 1) if maps else ():
            for feature_map in maps if draw else ():
                feature_map.redraw(FIRST_NEW_DRAW + draw)
            loss = evaluate(model, objective, "test", WINDOWS, config)["bits_per_byte"]
            found.append(pd.DataFrame({"draw": [draw], "bits_per_byte": [loss]}))
        model.load_state_dict(own)
        return found

    return REDRAWN.measure(root, comparison, objective, "the loss with new features", losses)


def redrawn(variant: str, every: int) -> ReadSample:
    """The variant's test loss with redraws minus that without, by seed."""
    return _redrawn(every, paired(f"{variant}@redraw_every={every}", variant))


def hurt_more(variant: str, other: str, every: int) -> ReadSample:
    """What redrawing adds to the variant's test loss, minus what it adds to the other's, by seed."""
    redraw = f"@redraw_every={every}"
    metric = "test_bits_per_byte"
    difference = per_seed(
        (variant + redraw, variant, other + redraw, other),
        lambda a, b, c, d: a.last(metric) - b.last(metric) - (c.last(metric) - d.last(metric)),
    )
    return _redrawn(every, difference)


new_features = REDRAWN.samples("seed")
NEW = tuple(range(1, NEW_DRAWS + 1))


def _redrawn(every: int, sample: ReadSample) -> ReadSample:
    """The sample with a note on how often there was a redraw; None where training was too short for one."""

    def read(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        steps = comparison.config["steps"]
        redraws = (steps - 1) // every
        found = sample(root, comparison, runs) if redraws else None
        if found is None:
            return None
        times = "once" if redraws == 1 else f"{redraws} times"
        note = f"features were redrawn {times}, the last time {steps - redraws * every} steps before the end"
        return replace(found, notes=(*found.notes, note))

    return read


def risen(root: Path) -> pd.DataFrame:
    """By variant and seed the loss with new features, mean over draws, minus that with its own."""
    losses = REDRAWN.read(root).pivot(index=["variant", "seed"], columns="draw", values="bits_per_byte")
    return (losses.drop(columns=0).mean(axis=1) - losses[0]).dropna().rename("value").reset_index()
