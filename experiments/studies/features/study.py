"""How good are random features as an estimate of the softmax kernel, at which scale of inputs, and which of them?

python -m experiments run features
"""

from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.statistics import estimate
from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.schema import Comparison
from experiments.studies.features import figures as features_plots
from experiments.studies.features.claims import CLAIMS
from experiments.studies.features.tables import (
    LENGTH,
    PUBLISHED_FEATURES,
    PUBLISHED_HEAD_DIM,
    PUBLISHED_LENGTH,
    TRAINED_DRAWS,
    VARIANTS,
    measure,
    read_table,
)

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "FAVOR+ estimates the softmax kernel by products of random features. How far is it off with M of them? Three "
    "things were claimed to matter: orthogonal random directions instead of independent ones, positive features "
    "instead of sines and cosines, and using every direction with both signs (hyperbolic). Each is measured at several "
    "scales of the inputs, and on the queries and keys of trained models."
)

METHOD = (
    "Random inputs: queries, keys and values with independent normal entries, queries and keys times the scale. Every "
    "draw has new inputs and new features; the estimators of a draw have the same inputs. Trained inputs: queries and "
    "keys of trained layers, as they are projected, of tokens drawn at random from validation windows; the features "
    "are drawn anew for every draw and are not those the model was trained with. M counts features, which is what they "
    "cost: hyperbolic and trigonometric features have two for a random direction, positive ones have one. All in "
    "float64, attention without a mask, intervals over draws (random inputs) or seeds (trained ones)."
)

NOT_SHOWN = (
    "How a model trains with such features: a large error of the kernel need not be a bad model, because training "
    "adapts queries and keys to the features. That an estimator which is better than another is good: where errors of "
    "the attention matrix lie above the dashed line, a matrix of zeros would be nearer. Tokens of different windows "
    "are paired and no mask is applied, so these are not the model's own attention matrices. Means of errors over few "
    "draws are ruled by rare draws that are far off; the claims are about typical errors. Lengths are shorter than "
    "the 4096 of the published figure; the error of the output falls with the length, the order of the estimators was "
    "not seen to depend on it."
)

DERIVED_OUTPUT_ERROR: dict[Any, str] = {(0.5, "positive"): "2.7e-05", (0.5, "trigonometric"): "1e-05"}
"""what was worked out by others of us for this point; the paper prints no numbers"""


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    random, trained = read_table(root, "random"), read_table(root, "trained")
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    if random is not None:
        in_curves = random[random["part"] == "curves"]
        for head_dim in sorted(in_curves["head_dim"].unique()):
            rows = in_curves[in_curves["head_dim"] == head_dim]
            entries.append(
                draw(directory, _kernel_entry(head_dim, rows["draw"].nunique()), features_plots.kernel_figure, rows)
            )
            entries.append(draw(directory, _attention_entry(head_dim), features_plots.attention_figure, rows))
        published = _published_point(random)
        if not published.empty:
            entries.append(TableEntry("A point of Performer's Figure 4", published, _PUBLISHED, uses_data=False))
    if trained is not None:
        entries.append(draw(directory, _TRAINED, features_plots.trained_figure, trained, comparison))
    return entries


def _published_point(random: pd.DataFrame) -> pd.DataFrame:
    """Output errors at the published width and number of features, as text; no rows if they were not measured."""
    point = random[random["part"] == "figure 4"]
    rows = []
    for (scale, estimator), values in point.groupby(["scale", "estimator"])["output_error"]:
        over_draws = estimate(values.tolist())
        interval = f" [{over_draws.low:.1e}, {over_draws.high:.1e}]" if over_draws.has_interval else ""
        expected = DERIVED_OUTPUT_ERROR.get((scale, estimator), "")
        rows.append((f"{scale:g}", estimator, f"{over_draws.mean:.1e}{interval}", str(over_draws.n), expected))
    return pd.DataFrame.from_records(rows, columns=["scale", "features", "output error", "draws", "expected"])


def _kernel_entry(head_dim: int, draws: int) -> FigureEntry:
    return FigureEntry(
        f"kernel-error-{head_dim}",
        f"Error of the softmax kernel, head width {head_dim}",
        "Mean over all pairs of a query and a key of (estimate / kernel − 1)², by the number of features M, for "
        f"normal inputs of three scales ({LENGTH} queries and keys). Marks: mean over {draws} draws with 95 % "
        "intervals; one that reaches the lower edge includes zero; the vertical axes of the columns differ. Lines: "
        "the expectation for independent directions (Choromanski et al. 2020), drawn in both rows, so that what "
        "orthogonal directions gain is the distance of marks and line. Where marks lie far below their own line, as "
        "those of positive features do at scale 1, the expectation comes from inputs and features so rare that none "
        "of these draws had them.",
        uses_data=False,
    )


def _attention_entry(head_dim: int) -> FigureEntry:
    return FigureEntry(
        f"attention-error-{head_dim}",
        f"Error of the attention matrix, head width {head_dim}",
        "Frobenius norm of the difference between the estimated and the exact attention matrix over that of the exact "
        "one, rows normalised in both, for the inputs of the figure above. Geometric mean of the draws with 95 % "
        "intervals; the vertical axes of the columns differ. Above the dashed line the estimate is worse than a matrix "
        "of zeros. Sines and cosines can give a row a sum close to zero or below it: that is what ruins them at scale "
        "1, or with few features. Where it does not happen, at small scales with enough features, they are the better "
        "estimate.",
        uses_data=False,
    )


_PUBLISHED = (
    f"Mean squared error of the output of attention for values of unit variance, with d = {PUBLISHED_HEAD_DIM}, "
    f"M = {PUBLISHED_FEATURES} features, orthogonal directions and length {PUBLISHED_LENGTH} (in the paper 4096, "
    "in a figure without numbers), with 95 % intervals over draws. Expected: values that were worked out for inputs of "
    "half the scale before this experiment was written."
)
_TRAINED = FigureEntry(
    "trained-error",
    "Errors on queries and keys of trained models",
    "The two errors of the figures above on queries and keys of trained layers (a column for each variant): geometric "
    "mean "
    f"over {TRAINED_DRAWS} draws, heads, layers and seeds, with 95 % intervals over seeds where there are three or "
    "more. Above the dashed line an estimate is worse than zero would be. The scale in a title is the root mean square "
    "of the entries of queries and keys, to be compared with the scales of the random inputs.",
)
