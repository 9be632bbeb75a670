"""Does RoPE make softmax and linear attention converge faster, and where should it be applied?

python -m experiments run convergence
"""

from pathlib import Path

import pandas as pd

from experiments.figures.style import FigureEntry, TableEntry
from experiments.records.schema import Comparison
from experiments.studies.convergence.claims import CLAIMS
from experiments.studies.convergence.figures import convergence_figures
from experiments.studies.decay import study as decay
from experiments.training.objectives import NextToken
from experiments.variants import DEFAULT_VARIANTS

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "Does rotary position embedding (RoPE) make softmax and linear attention converge faster and lower, and should a "
    "linear attention be rotated before its feature map or after it?"
)

METHOD = (
    "Byte-level language models that differ in their attention and position encoding alone are trained from equal "
    "weights on equal batches, with the same optimiser settings but for the learning rate, and evaluated on the same "
    "windows of held-out text: on the validation split along the way, on the test split at the end. Where there is a "
    "table of learning rates, each variant has the best of that grid, chosen on the validation split of the first "
    "seed; "
    "elsewhere one rate serves all. Differences between variants are taken seed by seed."
)

NOT_SHOWN = (
    "Larger models, longer contexts and longer training, where the order of the variants may be another. The best that "
    "each variant can do: no setting but the learning rate was tuned, if that, and a rate at the edge of its grid may "
    "not "
    "be the best. RoPE against a table of positions that has been learnt: where the variant with learned positions is "
    "no "
    "better than the one without, its table has not helped yet, and rows against it say little more than rows against "
    "no positions. Other numbers of random features, and features that are drawn anew during training, unless an "
    "variant's name says so."
)

VARIANTS = DEFAULT_VARIANTS


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Attention by distance of the trained models; returns sentences about what could not be measured."""
    return decay.measure_trained_models(root, comparison, objective)


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    attention = decay.read_attention(root)
    entries = convergence_figures(curves, summary, comparison, output / "figures")
    return [*entries, *decay.attention_figures(output / "figures", comparison, attention)]
