"""Does it help to use each random feature as both members of the pair that RoPE rotates?

python -m experiments run pairing
"""

from math import inf
from pathlib import Path

import pandas as pd

from experiments.analysis.claims import BITS_PER_BYTE, Claim, ReadSample, Sample
from experiments.analysis.runs import Runs
from experiments.analysis.samples import paired
from experiments.analysis.statistics import finished_values
from experiments.figures.settings import curves_by_setting, final_by_setting
from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.studies.features.kernel_errors import DIRECTIONS
from experiments.studies.pairing.variance import EQUAL_DRAWS, PAIRED, PLAIN, rotated_score_table, variance_figure
from experiments.training.objectives import NextToken

QUESTION = (
    "RoPE after the map rotates features in pairs. FAVOR+'s features are exchangeable, so the two of a pair have "
    "nothing to do with each other: the sine terms of their rotation are zero in the mean over draws and only add "
    "variance. A paired map uses each random feature twice, as both members of a pair. Then the sine terms cancel, "
    "and the score needs half the draws. Is it the better estimate, and does a model learn better with it?"
)
METHOD = (
    "The variance of the rotated score is measured over draws for random queries and keys, for the plain map, for the "
    "paired map at equal M (half the draws), and for the plain map with as many draws as the paired one. Language "
    "models with either map are trained from equal weights on equal batches, for several M, and elu+1, which has no "
    "draws, with its features paired too."
)
NOT_SHOWN = (
    "Other learning rates (one serves all variants, unless there is a table of them), larger models and longer "
    "training. "
    "The draw of the features alone moves the loss, and at equal M it differs between the maps even at equal seeds, "
    "so pairing by seed takes out less of the noise there than elsewhere. At equal draws the maps have the same "
    "draws, but the paired one has twice the features, and with them twice the frequencies of RoPE and twice the "
    "state: what it gains there need not come from pairing."
)

NUM_FEATURES = (32, 64, 128, 256)
VARIANTS = (
    *(
        f"{kernel}-rope-after@num_features={num_features}"
        for kernel in ("favor+", "favor+paired")
        for num_features in NUM_FEATURES
    ),
    "elu+1-rope-after",
    "elu+1+paired-rope-after",
)

VARIANCE_DRAWS = 200
SHOWN_FEATURES = 64
SHOWN_SCALE = 0.5
COLUMNS = {
    "map": TEXT,
    "directions": TEXT,
    "num_features": whole(2, 2**16),
    "scale": number(0),
    "distance": whole(0, 2**20),
    "draw": whole(0, 10**6),
    "squared_error": number(0),
    "expected": number(0),
}


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write variance.csv; returns nothing, as all of it can be measured."""
    tables = [rotated_score_table(draws=VARIANCE_DRAWS, directions=directions) for directions in DIRECTIONS]
    write_atomically(root / "variance.csv", to_csv(pd.concat(tables), "%.6g"))
    return []


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    values = finished_values(root, comparison, curves)
    if not values.empty:
        entries.append(draw(directory, _FINAL, final_by_setting, values, summary, comparison))
        what = {"metric": "bits_per_byte", "quantity": "bits per byte", "start": 0.25}
        entries.append(draw(directory, _CURVES, curves_by_setting, curves, summary, comparison, **what))
    variance = _read(root)
    if variance is not None:
        entries.append(draw(directory, _VARIANCE, variance_figure, variance, SHOWN_FEATURES))
    return entries


def _read(root: Path) -> pd.DataFrame | None:
    path = root / "variance.csv"
    key = ["map", "directions", "num_features", "scale", "distance", "draw"]
    return read_csv(path, COLUMNS, key=key) if path.exists() else None


def _relative_change(one: str, other: str, num_features: int, scale: float, distance: int) -> ReadSample:
    """The first map's squared error minus the second's, over the second's mean over draws, for each draw.

    Its mean is the relative change of the variance. Directions are orthogonal, as those of the trained models.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        variance = _read(root)
        if variance is None:
            return None
        rows = variance[(variance["num_features"] == num_features) & (variance["scale"] == scale)]
        rows = rows[(rows["distance"] == distance) & (rows["directions"] == "orthogonal")]
        first, second = (rows[rows["map"] == name].set_index("draw")["squared_error"] for name in (one, other))
        both = first.index.intersection(second.index)
        values = {int(index): float((first[index] - second[index]) / second.mean()) for index in both}
        return Sample(values, VARIANCE_DRAWS, unit_of_sample="draws")

    return sample


HYPOTHESIS = (
    "none found; our own hypothesis. A first trial (M = 64, 800 steps): -0.07 with one seed, +0.04 with another"
)
MARGIN = 0.05
"""of the variance"""


def _claims() -> tuple[Claim, ...]:
    variance = [
        Claim(
            key=f"variance-{name}-{distance}",
            statement=f"At {what} the paired map's rotated score has less variance, at distance {distance}.",
            published="none found; our own hypothesis",
            quantity=(
                "change of the rotated score's variance, paired against plain, M = 64"
                f"{'' if other == PLAIN else ' from 32 draws against M = 32 from as many'}, orthogonal directions"
            ),
            region=(-inf, 0),
            margin=MARGIN,
            sample=_relative_change(PAIRED, other, SHOWN_FEATURES, SHOWN_SCALE, distance),
            family="variance",
            data=f"N(0, 1) inputs times {SHOWN_SCALE}",
            size="one head of width 32, 256 pairs of a query and a key, no training",
        )
        for other, name, what in ((PLAIN, "equal-M", "equal M"), (EQUAL_DRAWS, "equal-draws", "equal draws"))
        for distance in (8, 64, 512)
    ]
    losses = [
        Claim(
            key=f"loss-{num_features}",
            statement=f"With M = {num_features}, the paired map gives a lower loss than the plain one.",
            published=HYPOTHESIS if num_features == 64 else "none found; our own hypothesis",
            quantity="test loss, paired minus plain, bits per byte",
            region=(-inf, 0),
            margin=0.01,
            sample=paired(
                f"favor+paired-rope-after@num_features={num_features}",
                f"favor+-rope-after@num_features={num_features}",
            ),
            family="loss",
            resolution=BITS_PER_BYTE,
        )
        for num_features in NUM_FEATURES
    ]
    losses += [
        Claim(
            key=f"loss-equal-draws-{num_features}",
            statement=f"With {num_features // 2} draws, the paired map gives a lower loss than the plain one.",
            published="none found; our own hypothesis",
            quantity=f"test loss, paired of M = {num_features} minus plain of {num_features // 2}, bits per byte (the "
            "paired map also has twice the frequencies and twice the state)",
            region=(-inf, 0),
            margin=0.01,
            sample=paired(
                f"favor+paired-rope-after@num_features={num_features}",
                f"favor+-rope-after@num_features={num_features // 2}",
            ),
            family="loss",
            resolution=BITS_PER_BYTE,
        )
        for num_features in NUM_FEATURES[1:]
    ]
    elu = Claim(
        key="loss-elu+1",
        statement="Pairing elu+1's features lowers its loss.",
        published="none found; our own hypothesis. A first trial (800 steps): -0.04 with one seed",
        quantity="test loss, paired minus plain, bits per byte (pairing also doubles features and frequencies)",
        region=(-inf, 0),
        margin=0.01,
        sample=paired("elu+1+paired-rope-after", "elu+1-rope-after"),
        family="loss",
        resolution=BITS_PER_BYTE,
    )
    return (*variance, *losses, elu)


CLAIMS = _claims()

_FINAL = FigureEntry(
    "final-loss",
    "Loss after training, paired and plain, by number of features",
    "Test bits per byte after the last step. elu+1 has as many features as a head has channels, D, and paired twice as "
    "many.",
)
_CURVES = FigureEntry(
    "validation",
    "Validation loss, paired and plain",
    "Bits per byte of the validation split, from a quarter of the run on.",
)
_VARIANCE = FigureEntry(
    "variance",
    "Variance of the rotated score",
    "Mean squared error of the rotated score over the softmax kernel, from its expectation c(Δ), over "
    f"{VARIANCE_DRAWS} draws of random features, M = {SHOWN_FEATURES}, head width 32; lines: what the formula for "
    "independent draws gives. Queries and keys are normal with the scale for standard deviation. The claims judge "
    "orthogonal directions, which the models have too. At scale 1 most of the variance is of draws so rare that none "
    "is among these.",
    uses_data=False,
)
