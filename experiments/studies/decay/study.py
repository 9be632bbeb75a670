"""How does attention fall off with distance: in theory, over random content and features, and in trained models?

python -m experiments run decay
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from experiments.analysis.statistics import Estimate, estimate
from experiments.config import Config
from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.schema import Comparison
from experiments.studies.decay import figures as decay_plots
from experiments.studies.decay.claims import CLAIMS
from experiments.studies.decay.tables import (
    BOUND_WIDTH,
    COLUMNS,
    HEAD_DIM,
    MASK_DRAWS,
    SCORE_DRAWS,
    SCORE_PAIRS,
    bound_table,
    bound_widths_table,
    kept_draws,
    mask_draws_table,
    mask_table,
    read,
    scores_table,
    write,
)
from experiments.training.objectives import NextByte, NextToken, evenly_spaced
from experiments.training.position_loss import by_bin, losses_by_position, overlapping
from experiments.training.trained_models import trained_models
from experiments.variants import DEFAULT_VARIANTS
from linear_rope.diagnostics import attention_maps, expected_rope_mask, weight_by_distance

__all__ = [
    "CLAIMS",
    "COLUMNS",
    "METHOD",
    "NOT_SHOWN",
    "QUESTION",
    "VARIANTS",
    "attention_figures",
    "figures",
    "measure",
    "measure_trained_models",
    "read_attention",
]

QUESTION = "Does RoPE make attention decay with distance, as RoFormer argues?"

WINDOWS = 8
"""of the validation split, for attention weights"""
SPANS, SPAN_CONTEXTS = 8, 16
"""stretches of the test split, each of this many contexts, whose overlapping windows give the loss by position"""

METHOD = (
    "Five looks at it: the bound that the paper proves and plots; the scores of random content, of a key equal to its "
    "query and of an independent one; the mask over distance that RoPE after the FAVOR+ map is in expectation, against "
    f"real draws; the attention weights of trained language models by distance, for every variant, on {WINDOWS} "
    "windows of "
    "the validation split; and their loss by position in the context, on overlapping windows of "
    f"{SPANS} stretches of the test split, each of {SPAN_CONTEXTS} contexts."
)

NOT_SHOWN = (
    "That attention which falls with distance is good for a model, or that RoPE is why it falls: text is more alike "
    "nearby. Nor a monotone fall: two ranges of distance are compared, by absolute weights; those of eq. 19 can be "
    "negative, and their signed mean is near zero. The bound says nothing of the scores of a given content, which may "
    "grow with distance. The mask is that of random queries and keys of one scale. A loss that falls with position "
    "says that the past helps, not how far back it is used; why it rises where it does is not looked into. Weights of "
    "models that were trained so briefly may be far from those of models trained long."
)

VARIANTS = DEFAULT_VARIANTS

EXPECTED_BOUND = {0: "32.5", 1: "31.5", 50: "12.63", 100: "10.23", 200: "7.24", 256: "6.54"}
"""what RoFormer's Figure 2 shows by distance, worked out from its definition; the paper prints no numbers"""

EXPECTED_SIMILARITY = {128: "0.284", 256: "0.354", 512: "0.185", 1024: "0.263"}
"""c(Δ) at d = 64 where it rises again with distance, worked out from its definition; no paper prints numbers"""


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write the CSV files of decay_tables.py; returns sentences about what could not be measured."""
    write(root, "bound", bound_table())
    write(root, "bound_widths", bound_widths_table())
    write(root, "scores", scores_table())
    of_draws = mask_draws_table()
    write(root, "mask", mask_table(of_draws))
    write(root, "mask_draws", kept_draws(of_draws))
    notes = measure_trained_models(root, comparison, objective)
    return notes + measure_position_loss(root, comparison, objective)


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    bound, scores, mask, attention, losses = (
        read(root, name) for name in ("bound", "scores", "mask", "attention", "position_loss")
    )
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    if bound is not None:
        entries.append(draw(directory, _BOUND, decay_plots.bound_figure, bound, EXPECTED_BOUND))
        shown = bound[bound["distance"].isin(EXPECTED_BOUND)]
        values = pd.DataFrame(
            {
                "distance": shown["distance"],
                "computed here": shown["bound"].map("{:.2f}".format),
                "expected": shown["distance"].map(EXPECTED_BOUND),
            }
        )
        entries.append(TableEntry("Values of the bound", values, _BOUND_TABLE, uses_data=False))
    if scores is not None:
        means = score_means(scores)
        entries.append(draw(directory, _SCORES, decay_plots.scores_figure, means, HEAD_DIM, EXPECTED_SIMILARITY))
        entries.append(TableEntry("Scores of random content", _score_cells(means), _SCORES_TABLE, uses_data=False))
    if mask is not None:
        entries.append(draw(directory, _MASK, decay_plots.mask_figure, mask))
    entries += attention_figures(directory, comparison, attention)
    if losses is not None:
        entries.append(draw(directory, _POSITIONS, decay_plots.position_loss_figure, losses, comparison))
    return entries


def measure_trained_models(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write attention.csv: mean weight and mean absolute weight by distance, for every layer of every trained cell.

    Columns variant, seed, layer, distance, signed, absolute; over evenly spaced validation windows. Returns a sentence
    for each cell whose final weights are not there.
    """
    tokens = objective.windows("validation", WINDOWS)[0]
    tables: list[pd.DataFrame] = []
    notes: list[str] = []
    for name, seed, model in trained_models(root, comparison, objective, "attention by distance", notes):
        on_device = tokens.to(next(model.parameters()).device)
        for layer, weights in enumerate(attention_maps(model, on_device)):
            signed, absolute = weight_by_distance(weights.cpu())
            columns = {"distance": np.arange(len(signed)), "signed": signed.numpy(), "absolute": absolute.numpy()}
            tables.append(pd.DataFrame({"variant": name, "seed": seed, "layer": layer, **columns}))
    if tables:
        write(root, "attention", pd.concat(tables))
    return notes


def measure_position_loss(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write position_loss.csv: bits per byte over ranges of positions that double, for every trained cell.

    Columns variant, seed, first, last, bits_per_byte; over overlapping windows of the test split, so that the
    ranges differ in their past and not in what is to be predicted. Returns a sentence for each cell whose final weights
    are not there, or one that says why there is no table.
    """
    config = Config(**comparison.config)
    if not isinstance(objective, NextByte):
        return [f"--data {objective.corpus.name} is not learnt as a text of bytes: no loss by position was measured"]
    length = min(SPAN_CONTEXTS * config.context, len(objective.corpus.test) - 1)
    if length < 2 * config.context:
        return [f"the test split of --data {objective.corpus.name} is too short for a loss by position"]
    windows, counted = overlapping(evenly_spaced(objective.corpus.test, length, SPANS), config.context)
    tables: list[pd.DataFrame] = []
    notes: list[str] = []
    for name, seed, model in trained_models(root, comparison, objective, "the loss by position", notes):
        losses = by_bin(losses_by_position(model, windows, config, counted))
        tables.append(losses.assign(variant=name, seed=seed)[list(COLUMNS["position_loss"])])
    if tables:
        write(root, "position_loss", pd.concat(tables))
    return notes


def read_attention(root: Path) -> pd.DataFrame | None:
    """The table of attention.csv; None if there is none. Raises ValueError if it is not as it should be."""
    return read(root, "attention")


def attention_figures(
    directory: Path, comparison: Comparison, attention: pd.DataFrame | None
) -> list[FigureEntry | TableEntry]:
    """The figures of attention.csv, if there is one."""
    if attention is None:
        return []
    return [
        draw(directory, _ATTENTION, decay_plots.attention_figure, attention, comparison),
        draw(directory, _LAYERS, decay_plots.layers_figure, attention, comparison),
    ]


def score_means(scores: pd.DataFrame) -> pd.DataFrame:
    """Over draws, by distance: columns distance, expected (c(Δ)), and mean, low and high of equal and of gaussian."""
    rows = []
    for distance, of_distance in scores.groupby("distance"):
        equal, gaussian = (estimate(list(of_distance[name])) for name in ("equal", "gaussian"))
        expected = expected_rope_mask(torch.tensor(distance), HEAD_DIM).item()
        rows.append((distance, expected, *_ends(equal), *_ends(gaussian)))
    names = [f"{kind}_{end}" for kind in ("equal", "gaussian") for end in ("mean", "low", "high")]
    return pd.DataFrame.from_records(rows, columns=["distance", "expected", *names])


def _ends(found: Estimate) -> tuple[float, float, float]:
    return found.mean, found.low, found.high


def _score_cells(means: pd.DataFrame) -> pd.DataFrame:
    def interval(kind: str) -> list[str]:
        columns = (means[f"{kind}_{end}"] for end in ("mean", "low", "high"))
        return [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in zip(*columns, strict=True)]

    return pd.DataFrame(
        {
            "distance": means["distance"].map("{:,}".format),
            "c(Δ)": means["expected"].map("{:.3f}".format),
            "worked out by hand": means["distance"].map(EXPECTED_SIMILARITY).fillna("-"),
            "key equal to its query": interval("equal"),
            "independent key": interval("gaussian"),
        }
    )


_BOUND = FigureEntry(
    "bound",
    "RoFormer's bound on RoPE scores by distance",
    f"(2/d)·Σ|S_i| for d = {BOUND_WIDTH} and base 10000, as in RoFormer's Figure 2: an upper bound on how the score of "
    "fixed content can vary with distance, up to a factor that depends on the content. It falls, with ripples. "
    "The paper proves the inequality; that the bound falls is read off this plot, and a trained model need not follow "
    "it: for some content the score grows with distance. Circles: values worked out from the definition by hand, as "
    "the paper prints none.",
    uses_data=False,
)
_BOUND_TABLE = "Points of RoFormer's Figure 2 and what is computed here for them."
_SCORES = FigureEntry(
    "scores",
    "RoPE's scores of random content by distance",
    f"D = {HEAD_DIM}, N(0, 1) content, {SCORE_DRAWS} draws of {SCORE_PAIRS} pairs; marks: means, with 95 % intervals "
    "over draws. Left: a key that equals its query, the score over that at distance 0. The line is its expectation, "
    "c(Δ) = (2/D)·Σcos(Δθ_i). It falls at first, and it is not monotone: circles mark where it is higher at the double "
    "distance. Right: a key that is independent of its query. The mean score is 0 at all distances, so that there is "
    "nothing to decay (Barbero et al. 2024).",
    uses_data=False,
)
_SCORES_TABLE = (
    "Means over draws [95 % interval]: xᵀR_Δx / |x|² of a key equal to its query, beside its expectation c(Δ), and "
    "qᵀR_Δk / √D of independent queries and keys, whose expectation is 0."
)
_MASK = FigureEntry(
    "mask",
    "RoPE after the FAVOR+ map is a fixed mask in expectation",
    "Score of a rotated pair of features over the exact softmax kernel, by distance. Lines: c(Δ) = (2/M)·Σcos(Δθ_i), "
    f"the expectation over the random features. Marks: the mean over {MASK_DRAWS} real draws, with 95 % intervals "
    f"over draws (D = {HEAD_DIM}, N(0, ¼) queries and keys). Where they agree, what RoPE adds after the map is "
    "in expectation the same for all content; anything a model learns beyond that lives in its one draw.",
    uses_data=False,
)
_ATTENTION = FigureEntry(
    "attention",
    "Attention by distance in the trained models",
    "Mean weight that a query gives to the key Δ positions before it, averaged over layers, heads, seeds and queries "
    f"in the second half of {WINDOWS} validation windows (fewer if the split is shorter), one row per attention "
    "kernel. Left: the absolute value of the weight. Right: the signed weight; for RoPE after the map these are the "
    "weights of RoFormer eq. 19, which can be negative and need not sum to one, so its level does not compare with "
    "the others', its shape does. Means over ranges of distance that grow by a fixed factor.",
)
_LAYERS = FigureEntry(
    "attention-layers",
    "Attention by distance, layer by layer",
    "The absolute weights of the figure above, for each layer on its own (a row; layer 0 reads the embeddings) and "
    "each attention kernel (a column).",
)
_POSITIONS = FigureEntry(
    "position-loss",
    "Loss by position in the context",
    "Mean bits per byte of the targets in ranges of positions that double, against the middle of the range; "
    f"overlapping windows of {SPANS} stretches of the test split (fewer if it is shorter), so that all ranges are "
    "the same bytes, and differ in how much of the past is seen. A line that goes on falling uses the additional "
    "past; one that rises belongs to a model to which more of the past is a burden.",
)
