"""The quantities of the recall study that its claims are about: test accuracies."""

from pathlib import Path
from typing import Literal

from experiments.data.generated import TEST_SEQUENCES
from experiments.data.registry import CATALOG
from experiments.judge.samples import ReadSample, paired_answers, per_seed, with_all_variants
from experiments.records.schema import Comparison
from experiments.train.objectives import NextToken

METRIC = "test_accuracy"
LEARNT = 0.95
BEGUN = 0.35
"""guessing among the four values that a sequence of the smallest task tells is right for 0.25 of the
answers, and for 0.29 if earlier pairs are guessed, which are asked for sooner"""


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Nothing: accuracies are recorded in training. Returns a sentence if none are."""
    if objective.primary.name == "accuracy":
        return []
    name = objective.corpus.name
    return [f"--data {name} is a text, in which nothing is asked: no accuracy was measured; give --data recall-64"]


def last_answers_judged_together(variant: str) -> ReadSample:
    """The last accuracy of a variant, by seed, judged by the spread of all variants."""
    return with_all_variants(per_seed((variant,), lambda run: run.last(METRIC)), METRIC, 1.0)


def difference(variant: str, other: str, by: Literal["either", "other"]) -> ReadSample:
    """The last accuracy, variant minus other, of recall by seed, judged by the spread of all variants."""
    # Twice the variance of one variant: what the variants of a seed share, data and first weights, is taken to decide
    # nothing.
    learnt = LEARNT if by == "other" else BEGUN
    return with_all_variants(paired_answers(variant, other, METRIC, learnt, by), METRIC, 2**0.5)


def one_answer(comparison: Comparison) -> float:
    """The share that one answer has in an accuracy of recall on the test split."""
    row = CATALOG["data"].get(f"recall-{comparison.config['context']}")
    answers = row["arguments"]["pairs"] if row else 1
    return 1 / (min(comparison.config["test_windows"], TEST_SEQUENCES) * answers)
