"""What trained classifiers say of some examples of the test split, for a person to read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from experiments.config import Config
from experiments.records.csv_files import TEXT, whole
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.tables import RUN, Table
from experiments.train.classification import Classification, classify
from experiments.train.trained_models import trained_models

CANDIDATES = 120
"""documents of the test split, of all lengths, among which the samples are"""
KEPT = 24
"""samples in answers.csv"""
SHOWN = 8
"""of these in the report"""
END = 160
"""characters of a document's beginning, and of its end, in a sample"""

ANSWERS = Table(
    "answers",
    RUN | {"number": whole(0, 10**9)},
    {"tokens": whole(0, 2**40), "text": TEXT, "label": TEXT, "said": TEXT},
)


def collect_answers(root: Path, comparison: Comparison, objective: Classification) -> list[str]:
    """What the runs of the first seed say of some examples: half of them right and half wrong, if there are so many.

    They are spread over all lengths. Right or wrong is the first variant that reads the most; scores are neither. What
    was collected stays as it is if the weights of some variant in it are gone.
    """
    notes, settings = list[str](), {variant.name: variant.settings for variant in comparison.variants}
    first = msgspec.structs.replace(comparison, seeds=comparison.seeds[:1])
    chosen = spread(objective.chosen("test", Config(**comparison.config).test_windows), CANDIDATES)
    texts, said = objective.examples.texts("test").iloc[chosen].to_numpy().tolist(), dict[str, list[str]]()
    for name, _, model in trained_models(root, first, objective, "what is said of examples", notes):
        length = objective.of(settings[name]).length
        found = classify(model, objective.tokenizer, length, objective.describe(), texts)
        said[name] = [f"{each:.1f}" if objective.is_score else str(each) for each in found]
    there = {name for name, _ in ANSWERS.rows_by_run(root)} & set(settings)
    if said and there <= said.keys():
        labels = objective.examples.test["label"].iloc[chosen].map(str).to_numpy()
        is_right = np.array(said[judge(comparison, said)]) == labels
        rows = spread(np.arange(len(chosen)), KEPT) if objective.is_score else half_and_half(is_right, KEPT)
        tokens = objective.whole_lengths("test", chosen[rows])
        shared = {
            "seed": first.seeds[0],
            "number": chosen[rows],
            "tokens": tokens,
            "text": [shortened(texts[row]) for row in rows],
            "label": labels[rows],
        }
        parts = [
            pd.DataFrame(shared | {"variant": name, "said": np.array(answers, dtype=object)[rows]})[ANSWERS.columns]
            for name, answers in said.items()
        ]
        ANSWERS.write(root, *parts)
    return notes


def judge(comparison: Comparison, there: Mapping[str, object]) -> str:
    """The variant by which samples are right or wrong: the first of those that read the most."""
    variants = [variant for variant in comparison.variants if variant.name in there]
    return max(variants, key=comparison.context_of).name


def spread(places: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of these, evenly spaced."""
    return places[np.linspace(0, len(places) - 1, min(count, len(places))).astype(int)]


def half_and_half(is_right: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` places, ascending: half of them where it is right and half where it is not, evenly spaced."""
    halves = [spread(np.flatnonzero(is_right == right), count // 2) for right in (True, False)]
    return np.sort(np.concatenate(halves))


def shortened(texts: Sequence[str]) -> str:
    """The beginning and the end of each text, on one line."""
    lines = [" ".join(text.split()) for text in texts]
    return " | ".join(line if len(line) <= 2 * END else f"{line[:END]} […] {line[-END:]}" for line in lines)


def samples_of(rows: Rows, told: Callable[["pd.Series[str]"], Mapping[str, str]]) -> pd.DataFrame | None:
    """The table of samples, if there are some: of each text itself, its label, and what ``told`` makes of what the
    variants say of it, by name. Its words are the seed and the variant that is ``judge``.
    """
    answers, has_classes = ANSWERS.read(rows.root), bool(rows.comparison.objective.classes)
    if answers is None:
        return None
    by = judge(rows.comparison, dict.fromkeys(answers["variant"]))
    judged = answers[answers["variant"] == by].set_index("number")
    agree: Any = judged["said"] == judged["label"]
    lines = []
    places = half_and_half(agree.to_numpy(), SHOWN) if has_classes else spread(np.arange(len(judged)), SHOWN)
    for number, text in judged.iloc[places].iterrows():
        remark = f" ({by} is {'right' if agree[number] else 'wrong'})" if has_classes else ""
        lines += [(f"text of {text['tokens']:,} tokens", text["text"]), ("label", f"{text['label']}{remark}")]
        lines += told(answers[answers["number"] == number].set_index("variant")["said"]).items()
    table = pd.DataFrame(lines, columns=["of", "words"])
    table.attrs = {"seed": int(answers["seed"].iloc[0]), "judge": by}
    return table
