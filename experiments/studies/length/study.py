"""What happens to a model on sequences longer than those it was trained on, and which position encoding bears it?

python -m experiments run length
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from experiments.config import Config
from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.csv_files import to_csv
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.studies.length import figures as length_plots
from experiments.studies.length.claims import CLAIMS
from experiments.studies.length.tables import (
    AS_TRAINED,
    COLUMNS,
    IN_SHORT_WINDOWS,
    by_position,
    length_table,
    read_losses,
    window_means,
)
from experiments.training.objectives import NextByte, NextToken, evenly_spaced
from experiments.training.position_loss import by_bin, losses_by_position, recut
from experiments.training.trained_models import trained_models
from experiments.variants import PEER, get_variant
from linear_rope.attention.multi_head import RoPEAttention
from linear_rope.model import CausalLM
from linear_rope.positions.rope_scaling import NTKAware, PositionInterpolation, RopeScaling, YaRN

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "Models are trained on short sequences and evaluated on sequences up to sixteen times longer, without further "
    "training. Which position encodings go on working, for softmax attention and for linear attention? And what do "
    "the ways of stretching RoPE that were made for softmax attention (position interpolation, NTK-aware base, YaRN) "
    "do for linear attention, where RoPE can act after the feature map?"
)
LONGEST_WINDOWS = 8
"""of sixteen times the context; shorter windows are cut from them"""

METHOD = (
    f"The same bytes of the test split, {LONGEST_WINDOWS} windows of sixteen times the training length, are cut into "
    "windows of the training length, twice that, and so on, so that every length is evaluated on the same targets, the "
    "longer ones with more past. The loss "
    "is the mean over all positions of a window, and it is also looked at by position. RoPE is evaluated as trained, "
    "and with each way of stretching by the factor of the lengths."
)
NOT_SHOWN = (
    "Fine-tuning at the longer length, which position interpolation and YaRN were published with. Large models and "
    "long training. Whether a model uses the far past: a loss that does not rise only says that it is not disturbed. "
    "YaRN's temperature belongs to the exponential of the score: softmax attention has it, and FAVOR+ where RoPE acts "
    "before the map; elsewhere only its angles are used."
)

VARIANTS = (
    "softmax-none",
    "softmax-learned",
    "softmax-sinusoidal",
    "softmax-rope",
    "softmax-alibi",
    *(
        f"{kernel}-{position}"
        for kernel in ("favor+", "elu+1")
        for position in ("none", "learned", "sinusoidal", "rope-before", "rope-after")
    ),
)

FACTORS = (1, 2, 4, 8, 16)
SCALINGS: dict[str, Callable[[float, int], RopeScaling]] = {
    "position interpolation": lambda factor, length: PositionInterpolation(factor),
    "NTK-aware": lambda factor, length: NTKAware(factor),
    "YaRN": lambda factor, length: YaRN(factor, length),
}
ROPES = ("rope-before", "rope-after")


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write length.csv; returns sentences about what could not be measured."""
    config = Config(**comparison.config)
    positions = {variant.name: variant.position for variant in comparison.variants}
    if not isinstance(objective, NextByte):
        return [
            f"--data {objective.corpus.name} is not learnt as a text of bytes: no loss at other lengths was measured"
        ]
    factors = [factor for factor in FACTORS if len(objective.corpus.test) > factor * config.context]
    notes: list[str] = []
    tables = []
    if factors != list(FACTORS):
        longest = factors[-1] * config.context
        notes.append(f"the test split is too short for windows of more than {longest:,} tokens")
    windows = evenly_spaced(objective.corpus.test, factors[-1] * config.context, LONGEST_WINDOWS)
    for name, seed, model in trained_models(root, comparison, objective, "the loss at other lengths", notes):
        has_table = positions[name] == "learned" or get_variant(name).kernel == PEER
        if has_table:
            notes.append(f"{name} is not evaluated beyond {config.context} tokens, where its table of positions ends")
        short = recut(windows, config.context)
        parts = [losses_by_position(model, short[part :: factors[-1]], config) for part in range(factors[-1])]
        in_short = by_bin(torch.cat(parts)).assign(method=IN_SHORT_WINDOWS, length=config.context)
        tables.append(in_short.assign(variant=name, seed=seed))
        for factor in factors[:1] if has_table else factors:
            length = factor * config.context
            shown = recut(windows, length)
            for method in (AS_TRAINED, *(SCALINGS if positions[name] in ROPES and factor > 1 else ())):
                scaling = None if method == AS_TRAINED else SCALINGS[method](factor, config.context)
                _set_scaling(model, scaling)
                losses = losses_by_position(model, shown, config)
                tables.append(by_bin(losses).assign(variant=name, seed=seed, method=method, length=length))
        _set_scaling(model, None)
    if tables:
        write_atomically(root / "length.csv", to_csv(pd.concat(tables)[list(COLUMNS)], "%.9g"))
    return list(dict.fromkeys(notes))


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    measured = read_losses(root)
    if measured is None:
        return []
    directory = output / "figures"
    means = window_means(measured[measured["method"] != IN_SHORT_WINDOWS])
    added = by_position(measured)
    entries: list[FigureEntry | TableEntry] = [
        draw(directory, _BY_LENGTH, length_plots.by_length_figure, means, comparison, AS_TRAINED),
        draw(directory, _STRETCHED, length_plots.stretched_figure, means, comparison, AS_TRAINED, tuple(SCALINGS)),
    ]
    if not added.empty:
        entries.append(draw(directory, _BY_POSITION, length_plots.by_position_figure, added, comparison))
    return [*entries, TableEntry("Loss by length", length_table(means, comparison), _TABLE)]


def _set_scaling(model: CausalLM, scaling: RopeScaling | None) -> None:
    for module in model.modules():
        if isinstance(module, RoPEAttention):
            module.rope_scaling = scaling


_BY_LENGTH = FigureEntry(
    "by-length",
    "Loss by evaluation length, models as they were trained",
    "Mean bits per byte over windows of the test split, the same bytes at every length. Dotted vertical line: the "
    "length of training. A line that falls uses the additional past; one that rises is disturbed by positions or "
    "lengths it has not seen. Thin: each seed. A learned table ends where training ended, so its variant has one "
    "point.",
)
_STRETCHED = FigureEntry(
    "stretched",
    "RoPE stretched to longer sequences, without further training",
    "Mean bits per byte over windows of the test split, mean over seeds (thin: each seed), for every variant with "
    "RoPE, as "
    "trained and with three ways of stretching by the factor of the lengths.",
)
_BY_POSITION = FigureEntry(
    "by-position",
    "What longer windows add, by position",
    "Bits per byte in windows of sixteen times the training length (or the longest that the test split holds) minus "
    "those of the same targets in windows of the training length, in ranges of positions that double; models as they "
    "were trained. Above 0 a model is disturbed by what is farther back than it was trained on, below 0 it uses it. Up "
    "to the training length both are the same.",
)
_TABLE = (
    "Bits per byte, mean over seeds, by window length in tokens; the first is the length of training. A dash: not "
    "evaluated (stretching by a factor of 1 changes nothing; a learned table refuses longer windows)."
)
