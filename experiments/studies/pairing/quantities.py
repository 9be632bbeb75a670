"""The quantities of the pairing study that its claims are about."""

from pathlib import Path

from experiments.analysis.runs import Runs
from experiments.analysis.samples import ReadSample, Sample
from experiments.records.schema import Comparison
from experiments.studies.pairing.measure import SHOWN_FEATURES, SHOWN_SCALE, VARIANCE_DRAWS, read_variance


def relative_change(one: str, other: str, distance: int) -> ReadSample:
    """The first map's squared error minus the second's, over the second's mean over draws, for each draw.

    Its mean is the relative change of the variance. Directions are orthogonal, as those of the trained models.
    """

    def sample(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        variance = read_variance(root)
        if variance is None:
            return None
        rows = variance[(variance["num_features"] == SHOWN_FEATURES) & (variance["scale"] == SHOWN_SCALE)]
        rows = rows[(rows["distance"] == distance) & (rows["directions"] == "orthogonal")]
        first, second = (rows[rows["map"] == name].set_index("draw")["squared_error"] for name in (one, other))
        both = first.index.intersection(second.index)
        values = {int(index): float((first[index] - second[index]) / second.mean()) for index in both}
        return Sample(values, VARIANCE_DRAWS, unit_of_sample="draws")

    return sample
