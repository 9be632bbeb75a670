"""How does attention fall off with distance: in theory, in the mean over random features, and in trained models?

python -m experiments run decay
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments import decay_plots
from experiments.claims import Claim
from experiments.csv_files import TEXT, Column, number, read_csv, to_csv, whole
from experiments.plots import FigureEntry, TableEntry, draw
from experiments.record import write_atomically
from experiments.schema import Source
from experiments.stats import estimate
from experiments.tasks.language_model import ByteLanguageModel
from experiments.trained_models import trained_models
from experiments.variants import DEFAULT_ARMS
from linear_rope import FavorPlus, apply_rope
from linear_rope.diagnostics import attention_maps, expected_rope_mask, rope_decay_bound, weight_by_distance

QUESTION = "Does RoPE make attention decay with distance, as RoFormer argues?"

METHOD = (
    "Three looks at it: the bound that the paper proves and plots; the mask over distance that RoPE after the FAVOR+ "
    "map is in expectation, against the mean of real draws; and the attention weights of trained language models by "
    "distance, for every arm, on windows of the validation split."
)

NOT_SHOWN = (
    "That attention which falls with distance is good for a model, or that RoPE is why it falls: text is more alike "
    "nearby. The bound says nothing of the scores of a given content, which may grow with distance. The mask is that "
    "of random queries and keys of one scale. Weights of models that were trained so briefly may be far from those of "
    "models trained long."
)

VARIANTS = DEFAULT_ARMS

CLAIMS: tuple[Claim, ...] = ()

BOUND_WIDTH = 128
BOUND_DISTANCES = 257
EXPECTED_BOUND = {0: "32.5", 1: "31.5", 50: "12.63", 100: "10.23", 200: "7.24", 256: "6.54"}
"""what RoFormer's Figure 2 shows by distance, worked out from its definition; the paper prints no numbers"""

MASK_HEAD_DIM = 64
MASK_FEATURES = (16, 64, 256)
MASK_DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MASK_DRAWS = 1000
MASK_PAIRS = 64

WINDOWS = 8

DISTANCE = whole(0, 2**20)
COLUMNS: dict[str, dict[str, Column]] = {
    "bound": {"distance": DISTANCE, "bound": number()},
    "mask": {"num_features": whole(2, 4096), "distance": DISTANCE, "mean": number(), "low": number(), "high": number()},
    "attention": {
        "variant": TEXT,
        "layer": whole(0, 255),
        "distance": DISTANCE,
        "signed": number(),
        "absolute": number(0),
    },
}
"""what is drawn of each CSV file; what they hold besides is for other readers"""


def measure(root: Path, comparison: dict[str, Any], task: ByteLanguageModel) -> list[str]:
    """Write bound.csv, mask.csv and attention.csv; returns sentences about what could not be measured."""
    _write(root / "bound.csv", bound_table())
    _write(root / "mask.csv", mask_table())
    return measure_trained_models(root, comparison, task)


def figures(
    root: Path, output: Path, comparison: dict[str, Any], curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    bound, mask, attention = _read(root, "bound"), _read(root, "mask"), read_attention(root)
    if mask is not None:
        _check_mask(mask, root / "mask.csv")
    entries: list[FigureEntry | TableEntry] = []
    if bound is not None:
        entries.append(draw(output / "figures", _BOUND, decay_plots.bound_figure, bound, EXPECTED_BOUND))
        shown = bound[bound["distance"].isin(EXPECTED_BOUND)]
        values = pd.DataFrame(
            {
                "distance": shown["distance"],
                "computed here": shown["bound"].map("{:.2f}".format),
                "expected": shown["distance"].map(EXPECTED_BOUND),
            }
        )
        entries.append(TableEntry("Values of the bound", values, _BOUND_TABLE))
    if mask is not None:
        entries.append(draw(output / "figures", _MASK, decay_plots.mask_figure, mask))
    return entries + attention_figures(output / "figures", comparison, attention)


def bound_table() -> pd.DataFrame:
    """RoFormer's Figure 2: (2/d)·Σ|S_i| by distance; columns distance, bound."""
    distances = torch.arange(BOUND_DISTANCES)
    return pd.DataFrame({"distance": distances.numpy(), "bound": rope_decay_bound(distances, BOUND_WIDTH).numpy()})


def mask_table(draws: int = MASK_DRAWS, seed: int = 0) -> pd.DataFrame:
    """The rotated FAVOR+ score over its unrotated expectation, averaged over draws, beside c(Δ).

    For N(0, ¼) queries and keys (at N(0, 1) the variance of FAVOR+ would hide the mean). The score at distance Δ is
    (R_Δ φ(q))ᵀφ(k) / exp(qᵀk/√D); each draw gives the mean over the pairs, the interval is over draws. Columns
    num_features, distance, expected, mean, low, high, draws.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, MASK_PAIRS, MASK_HEAD_DIM, generator=generator).double() / 2
    exact = ((q * k).sum(-1) / math.sqrt(MASK_HEAD_DIM)).exp()
    positions = torch.tensor(MASK_DISTANCES)
    rows = []
    for num_features in MASK_FEATURES:
        ratios = []
        for draw_seed in range(draws):
            feature_map = FavorPlus(MASK_HEAD_DIM, num_features, seed=draw_seed)
            mapped_q, mapped_k = feature_map(q), feature_map(k)
            rotated = apply_rope(mapped_q.unsqueeze(1).expand(-1, len(positions), -1), positions)
            scores = (rotated * mapped_k.unsqueeze(1)).sum(-1)
            ratios.append((scores / exact.unsqueeze(-1)).mean(0).numpy())
        expected = expected_rope_mask(positions, num_features)
        for index, distance in enumerate(MASK_DISTANCES):
            over_draws = estimate([float(ratio[index]) for ratio in ratios])
            rows.append(
                (
                    num_features,
                    distance,
                    expected[index].item(),
                    over_draws.mean,
                    over_draws.low,
                    over_draws.high,
                    draws,
                )
            )
    columns = ["num_features", "distance", "expected", "mean", "low", "high", "draws"]
    return pd.DataFrame.from_records(rows, columns=columns)


def measure_trained_models(root: Path, comparison: dict[str, Any], task: ByteLanguageModel) -> list[str]:
    """Write attention.csv: mean weight and mean absolute weight by distance, for every layer of every trained cell.

    Columns variant, seed, layer, distance, signed, absolute; over evenly spaced validation windows. Returns a sentence
    for each cell whose final weights are not there.
    """
    tokens = task.windows("validation", WINDOWS)[:, :-1]
    tables: list[pd.DataFrame] = []
    notes: list[str] = []
    for name, seed, model in trained_models(root, comparison, "attention by distance", notes):
        for layer, weights in enumerate(attention_maps(model, tokens)):
            signed, absolute = weight_by_distance(weights)
            columns = {"distance": np.arange(len(signed)), "signed": signed.numpy(), "absolute": absolute.numpy()}
            tables.append(pd.DataFrame({"variant": name, "seed": seed, "layer": layer, **columns}))
    if tables:
        _write(root / "attention.csv", pd.concat(tables))
    return notes


def read_attention(root: Path) -> pd.DataFrame | None:
    """The table of attention.csv; None if there is none. Raises ValueError if it is not as it should be."""
    return _read(root, "attention")


def attention_figures(
    directory: Path, comparison: dict[str, Any], attention: pd.DataFrame | None
) -> list[FigureEntry | TableEntry]:
    """The figures of attention.csv, if there is one."""
    if attention is None:
        return []
    return [
        draw(directory, _ATTENTION, decay_plots.attention_figure, attention, comparison),
        draw(directory, _LAYERS, decay_plots.layers_figure, attention, comparison),
    ]


def _read(root: Path, name: str) -> pd.DataFrame | None:
    path = root / f"{name}.csv"
    return read_csv(path, COLUMNS[name]) if path.exists() else None


def _check_mask(mask: pd.DataFrame, path: Path) -> None:
    source = Source(str(path), "remove it, or run the comparison again to measure it anew")
    if not (mask["low"].le(mask["mean"]) & mask["mean"].le(mask["high"])).all():
        raise source.error(" has a mean that is not between low and high")
    if (mask["num_features"] % 2).any():
        raise source.error(" has an odd num_features")


def _write(path: Path, table: pd.DataFrame) -> None:
    write_atomically(path, to_csv(table, "%.9g"))


_BOUND = FigureEntry(
    "bound",
    "RoFormer's bound on RoPE scores by distance",
    f"(2/d)·Σ|S_i| for d = {BOUND_WIDTH} and base 10000, as in RoFormer's Figure 2: an upper bound on how the score of "
    "fixed content can vary with distance, up to a factor that depends on the content. It falls, with ripples. "
    "The paper proves the inequality; that the bound falls is read off this plot, and a trained model need not follow "
    "it: for some content the score grows with distance. Circles: values worked out from the definition by hand, as "
    "the paper prints none.",
)
_BOUND_TABLE = "Points of RoFormer's Figure 2 and what is computed here for them."
_MASK = FigureEntry(
    "mask",
    "RoPE after the FAVOR+ map is a fixed mask in expectation",
    "Score of a rotated pair of features over the exact softmax kernel, by distance. Lines: c(Δ) = (2/M)·Σcos(Δθ_i), "
    f"the expectation over the random features. Marks: the mean over {MASK_DRAWS} real draws, with 95 % intervals "
    f"over draws (D = {MASK_HEAD_DIM}, N(0, ¼) queries and keys). Where they agree, what RoPE adds after the map is "
    "in expectation the same for all content; anything a model learns beyond that lives in its one draw.",
)
_ATTENTION = FigureEntry(
    "attention",
    "Attention by distance in the trained models",
    "Mean weight that a query gives to the key Δ positions before it, averaged over layers, heads, seeds and queries "
    f"in the second half of {WINDOWS} validation windows (fewer if the split is shorter). Left: the absolute value of "
    "the weight. Right: the signed "
    "weight; for RoPE after the map these are the weights of RoFormer eq. 19, which can be negative and need not sum "
    "to one, so its level does not compare with the others', its shape does. Means over ranges of distance that grow "
    "by a fixed factor.",
)
_LAYERS = FigureEntry(
    "attention-layers",
    "Attention by distance, layer by layer",
    "The absolute weights of the figure above, for each layer on its own; layer 0 reads the embeddings.",
)
