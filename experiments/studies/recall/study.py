"""What can each attention look up in its past, and what does its position encoding have to do with it?

python -m experiments run recall
"""

from pathlib import Path

import pandas as pd

from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.schema import Comparison
from experiments.studies.recall import figures as recall_plots
from experiments.studies.recall.claims import CLAIMS
from experiments.training.objectives import NextToken

__all__ = ["CLAIMS", "METHOD", "NOT_SHOWN", "QUESTION", "VARIANTS", "figures", "measure"]

QUESTION = (
    "Linear attention keeps the past in a state of fixed size, and is known to recall worse than softmax attention. "
    "How much does its position encoding change that? Models are trained to say which value stood beside a key earlier "
    "in the sequence (multi-query associative recall, Arora et al. 2023), for every attention kernel and position "
    "encoding and by width."
)

METHOD = (
    "The task asks for little memory (four pairs, unless a longer one is chosen): it tests whether a model learns to "
    "look up. Two-layer models that differ in their attention and position encoding alone are trained from equal "
    "weights on equal batches, drawn anew for every step; the loss counts the answers and nothing else. Accuracy is "
    "the share of answers that get the largest logit, on the fixed sequences of the test split, after the last step "
    "(not at the best one); the curves are of the validation split. Elu+1 and relu have as many features as a head "
    "has channels, favor+ as many as num_features says, at every width. The spread of the initial weights, the "
    "learning rate, the batch and the number of steps were found in trials with one seed of softmax attention with "
    "RoPE and of elu+1 with RoPE after its map; no variant was tuned by itself. A difference of accuracies is judged "
    "only "
    "where one of the two variants is well above guessing, and a comparison with softmax attention with RoPE, the "
    "yardstick, only where that has learnt the task. Claims are judged by the wider of a variant's own spread and that "
    "of all variants, tables and figures show its own. A token is kept in a byte, so what tables and figures call "
    "bits per "
    "byte are bits per answer."
)

NOT_SHOWN = (
    "One number of steps serves all variants, and one learning rate unless there is a table of them, so a variant "
    "that is "
    "low here may need more steps and not be unable: models guess for long and then begin to recall all at once, and "
    "a curve shows whether one was still rising. The two variants and the width of the trials that found the settings "
    "are "
    "favoured in every comparison. How much a state of fixed size can hold: four pairs do not fill it; recall-128 to "
    "recall-512, with more pairs, would test it. The vocabulary and the models are smaller than those of Zoology, "
    "which also takes the best of four learning rates, so figures do not compare with its own. How often a variant "
    "begins to recall: from seed to seed it does or does not, and of a variant that does so in eight of ten, "
    "three seeds of three are half of the time all alike."
)

VARIANTS = (
    "softmax-none",
    "softmax-learned",
    "softmax-rope",
    *(
        f"{kernel}-{position}"
        for kernel in ("favor+", "elu+1", "relu")
        for position in ("none", "learned", "rope-before", "rope-after")
    ),
)


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Nothing: accuracies are recorded in training. Returns a sentence if none are."""
    if objective.primary.name == "accuracy":
        return []
    name = objective.corpus.name
    return [f"--data {name} is a text, in which nothing is asked: no accuracy was measured; give --data recall-64"]


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    accuracies = recall_plots.test_accuracies(curves, comparison, summary)
    recorded = curves[(curves["metric"] == "accuracy") & (curves["split"] == "validation")]
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    if not accuracies.empty:
        entries.append(TableEntry("Test accuracy", recall_plots.accuracy_table(accuracies, comparison), _TABLE))
        if accuracies["width"].nunique() > 1:
            entries.append(draw(directory, _WIDTH, recall_plots.width_figure, accuracies, comparison, summary))
        else:
            entries.append(draw(directory, _VARIANTS, recall_plots.variants_figure, accuracies, comparison, summary))
    if not recorded.empty:
        entries.append(draw(directory, _STEPS, recall_plots.steps_figure, recorded, comparison, summary))
    return entries


_TABLE = (
    "Share of the test split's answers that were predicted right: mean over the n finished seeds, in brackets its 95 % "
    "interval (Student's t, cut at 0 and 1; none below three seeds), and the worst and the best seed."
)
_WIDTH = FigureEntry(
    "accuracy-by-width",
    "Accuracy by width and position encoding",
    "Share of the test split's answers that were predicted right, after training; higher is better. One panel per "
    "attention kernel, one line per position encoding; the marker is the mean, the bar its 95 % interval (three seeds "
    "or more, cut at 0 and 1), dots are seeds. Points of a width are drawn beside each other so that none hides "
    "another.",
)
_VARIANTS = FigureEntry(
    "accuracy-by-variant",
    "Accuracy by position encoding",
    "Share of the test split's answers that were predicted right, after training; higher is better. One panel per "
    "attention kernel; the marker is the mean, the bar its 95 % interval (three seeds or more, cut at 0 and 1), dots "
    "are seeds.",
)
_STEPS = FigureEntry(
    "accuracy-by-step",
    "Accuracy during training",
    "Share of the validation split's answers that are predicted right. One row per attention kernel, one column per "
    "width. Thin lines are seeds, thick ones the mean of the seeds that finished. A line that still rises at the end "
    "belongs to a variant that was not trained to its end.",
)
