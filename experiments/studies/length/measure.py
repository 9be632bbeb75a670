"""The losses by window length that the length study measures, the tables made of them, and what claims compare."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

from experiments.config import Config
from experiments.records.schema import Comparison
from experiments.studies.tables import RUN, Table
from experiments.train.objectives import NextByte, NextToken, evenly_spaced
from experiments.train.position_loss import by_bin, losses_by_position, recut
from experiments.variants import PEER, get_variant
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.model import CausalLM
from linear_rope.positions.registry import has_table
from linear_rope.positions.rope_scaling import NTKAware, PositionInterpolation, RopeScaling, YaRN

LONGEST_WINDOWS = 8
"""of sixteen times the context; shorter windows are cut from them"""

AS_TRAINED = "as trained"
IN_SHORT_WINDOWS = "in windows of the training length"
"""the targets of the longest windows by their position there, each predicted in a window of the training length"""

FACTORS = (1, 2, 4, 8, 16)
SCALINGS: dict[str, Callable[[float, int], RopeScaling]] = {
    "position interpolation": lambda factor, length: PositionInterpolation(factor),
    "NTK-aware": lambda factor, length: NTKAware(factor),
    "YaRN": lambda factor, length: YaRN(factor, length),
}
ROPES = ("rope-before", "rope-after")

BREAKS = 0.1
"""bits per byte: what we call breaking"""

LOSSES = Table(
    "length",
    RUN | {"method": str, "length": int, "first": int},
    {"last": int, "bits_per_byte": float},
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write length.csv; returns sentences about what could not be measured."""
    return measure_lengths(root, comparison, objective, FACTORS, LONGEST_WINDOWS)


def measure_lengths(
    root: Path,
    comparison: Comparison,
    objective: NextToken,
    all_factors: Sequence[int],
    longest_windows: int,
    ways: Sequence[str] = tuple(SCALINGS),
) -> list[str]:
    """The same at these factors of the training length, in so many windows of the largest, or in all there are.

    ``ways`` are those of ``SCALINGS`` in which RoPE is stretched.
    """
    config, test = Config.of(comparison.config), objective.corpus.test
    if not isinstance(objective, NextByte):
        name = objective.corpus.name
        return [f"--data {name} is not learnt as a text of bytes: no loss at other lengths was measured"]
    positions = {variant.name: variant.position for variant in comparison.variants}
    factors = [factor for factor in all_factors if len(test) > factor * config.context]
    longest = factors[-1] * config.context
    windows = evenly_spaced(test, longest, longest_windows)
    short = recut(windows, config.context)

    def losses(name: str, seed: int, model: CausalLM) -> Iterator[pd.DataFrame | str]:
        ends = ends_with_its_context(name)
        if ends:
            yield f"{name} is not evaluated beyond {config.context} tokens, where its table of positions ends"
        parts = [losses_by_position(model, short[part :: factors[-1]], config) for part in range(factors[-1])]
        yield by_bin(torch.cat(parts)).assign(method=IN_SHORT_WINDOWS, length=config.context)
        for factor in factors[:1] if ends else factors:
            length = factor * config.context
            shown = recut(windows, length)
            for method in (AS_TRAINED, *(ways if positions[name] in ROPES and factor > 1 else ())):
                scaling = None if method == AS_TRAINED else SCALINGS[method](factor, config.context)
                _set_scaling(model, scaling)
                yield by_bin(losses_by_position(model, shown, config)).assign(method=method, length=length)
        _set_scaling(model, None)

    notes = LOSSES.measure(root, comparison, objective, "the loss at other lengths", losses)
    too_short = f"the test split is too short for windows of more than {longest:,} tokens"
    return notes if factors == list(all_factors) else [too_short, *notes]


def ends_with_its_context(variant: str) -> bool:
    """Whether its table of positions ends where the windows of training do."""
    return has_table(get_variant(variant).position) or get_variant(variant).kernel == PEER


def _set_scaling(model: CausalLM, scaling: RopeScaling | None) -> None:
    for module in model.modules():
        if isinstance(module, RoPEAttention):
            module.rope_scaling = scaling


def by_position(root: Path) -> pd.DataFrame:
    """What the longest windows add to the loss of the same targets in windows of the training length.

    Columns variant, seed, offset, value: by the middle of a range of positions in the longest windows, of models as
    trained, for variants that were evaluated there.
    """
    measured, keys = LOSSES.read(root), ["variant", "seed", "first", "last"]
    short = measured[measured["method"] == IN_SHORT_WINDOWS].set_index(keys)["bits_per_byte"]
    longest = measured[(measured["method"] == AS_TRAINED) & (measured["length"] == measured["length"].max())]
    added = (longest.set_index(keys)["bits_per_byte"] - short).dropna().rename("value").reset_index()
    return added.assign(offset=(added.pop("first") + added.pop("last") + 1) / 2)


def by_length(root: Path) -> pd.DataFrame:
    """Mean over all positions: columns variant, seed, method, length, value."""
    return window_means(LOSSES.read(root)).rename(columns={"bits_per_byte": "value"})


def stretched(root: Path) -> pd.DataFrame:
    """The same of the variants whose RoPE was stretched too."""
    means = by_length(root)
    return means[means.groupby("variant")["method"].transform("nunique") > 1]


def window_means(measured: pd.DataFrame) -> pd.DataFrame:
    """Mean over all positions: columns variant, seed, method, length, bits_per_byte.

    Of windows whose positions are all there; without ``IN_SHORT_WINDOWS``.
    """
    ranges = measured[measured["method"] != IN_SHORT_WINDOWS]
    positions = ranges["last"] - ranges["first"] + 1
    ranges = ranges.assign(positions=positions, bits=ranges["bits_per_byte"] * positions)
    keys = ["variant", "seed", "method", "length"]
    sums = ranges.groupby(keys, sort=False)[["positions", "bits"]].sum().reset_index()
    whole = sums[sums["positions"] == sums["length"]]
    return whole.assign(bits_per_byte=whole["bits"] / whole["length"])[[*keys, "bits_per_byte"]]


def by_factor(measured: pd.DataFrame, comparison: Comparison) -> pd.DataFrame:
    """``window_means`` by the factor of the training length."""
    means = window_means(measured)
    return means.assign(factor=means["length"] / comparison.config["context"])


loss = LOSSES.samples("seed", prepare=by_factor)
