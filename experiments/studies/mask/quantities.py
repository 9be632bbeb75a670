"""The quantities of the mask study that its claims are about."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd

from experiments.analysis.runs import Runs
from experiments.analysis.samples import ReadSample, Sample, from_table, paired, per_seed
from experiments.records.schema import Comparison
from experiments.studies.mask.measure import NEW_DRAWS, read_redrawn


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


def lost_when_redrawn(variant: str, other: str = "") -> ReadSample:
    """By seed: loss with new features (mean over draws) minus with its own; minus the other variant's, if given."""
    variants = (variant,) if not other else (variant, other)

    def read(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        redrawn = read_redrawn(root)

        def difference(seed: int) -> float | None:
            risen = [None if redrawn is None else _risen(redrawn, name, seed) for name in variants]
            known = [value for value in risen if value is not None]
            return known[0] - sum(known[1:]) if len(known) == len(variants) else None

        return difference

    return from_table(variants, read)


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


def _risen(redrawn: pd.DataFrame, name: str, seed: int) -> float | None:
    losses = redrawn[(redrawn["variant"] == name) & (redrawn["seed"] == seed)].set_index("draw")["bits_per_byte"]
    if set(losses.index) != set(range(NEW_DRAWS + 1)):
        return None
    return float(losses.drop(0).mean() - losses[0])
