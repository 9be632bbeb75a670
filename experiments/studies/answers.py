"""What trained classifiers say of some examples of the test split, for a person to read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from experiments.config import Config
from experiments.records.schema import Comparison
from experiments.show.rows import Rows
from experiments.studies.tables import RUN, Table
from experiments.train.classification import Classification, classify
from linear_rope.heads import Classifier

KEPT = 60
"""examples in answers.csv, of all lengths"""
SHOWN = 8
"""of these in the report"""
END = 160
"""characters of a document's beginning, and of its end, in a sample"""

ANSWERS = Table(
    "answers",
    RUN | {"number": int},
    {"tokens": int, "text": str, "label": str, "said": str},
)


def collect_answers(root: Path, comparison: Comparison, objective: Classification) -> list[str]:
    """Write what the runs of the first seed say of some examples, spread over all lengths."""
    settings = {variant.name: variant.settings for variant in comparison.variants}
    chosen = spread(objective.chosen("test", Config.of(comparison.config).test_windows), KEPT)
    texts = objective.examples.texts("test").iloc[chosen].to_numpy().tolist()
    shared = {
        "number": chosen,
        "tokens": objective.whole_lengths("test", chosen),
        "text": list(map(shortened, texts)),
        "label": objective.examples.test["label"].iloc[chosen].map(str).to_numpy(),
    }

    def answers(name: str, seed: int, model: Classifier) -> Iterator[pd.DataFrame]:
        length = objective.of(settings[name]).length
        found = classify(model, objective.tokenizer, length, objective.describe(), texts)
        yield pd.DataFrame(shared | {"said": [f"{each:.1f}" if objective.is_score else str(each) for each in found]})

    first = msgspec.structs.replace(comparison, seeds=comparison.seeds[:1])
    return ANSWERS.measure(root, first, objective, "what is said of examples", answers)


def judge(comparison: Comparison, there: set[str]) -> str:
    """The variant by which samples are right or wrong: the first of those that read the most."""
    return max((each for each in comparison.variants if each.name in there), key=comparison.context_of).name


def spread(places: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` of these, evenly spaced."""
    return places[np.linspace(0, len(places) - 1, min(count, len(places))).astype(int)]


def half_and_half(is_right: np.ndarray, count: int) -> np.ndarray:
    """At most ``count`` places, ascending: half of them where it is right and half where it is not, evenly spaced."""
    halves = [spread(np.flatnonzero(is_right == right), count // 2) for right in (True, False)]
    return np.sort(np.concatenate(halves))


def shortened(texts: Iterable[str]) -> str:
    """The beginning and the end of each text, on one line."""
    lines = [" ".join(text.split()) for text in texts]
    return " | ".join(line if len(line) <= 2 * END else f"{line[:END]} […] {line[-END:]}" for line in lines)


def samples_of(rows: Rows, told: Callable[["pd.Series[str]"], Mapping[str, str]]) -> pd.DataFrame:
    """The table of samples: of each text itself, its label, and what ``told`` makes of what the variants say of it, by
    name. Its words are the seed and the variant that is ``judge``.
    """
    answers, has_classes = ANSWERS.read(rows.root), bool(rows.comparison.objective.classes)
    by = judge(rows.comparison, {*answers["variant"]})
    judged = answers[answers["variant"] == by].set_index("number")
    is_right = (judged["said"] == judged["label"]).to_numpy()
    places = half_and_half(is_right, SHOWN) if has_classes else spread(np.arange(len(judged)), SHOWN)
    lines = []
    for place, (number, text) in zip(places, judged.iloc[places].iterrows(), strict=True):
        remark = f" ({by} is {'right' if is_right[place] else 'wrong'})" if has_classes else ""
        lines += [(f"text of {text['tokens']:,} tokens", text["text"]), ("label", f"{text['label']}{remark}")]
        lines += told(answers[answers["number"] == number].set_index("variant")["said"]).items()
    table = pd.DataFrame(lines, columns=["of", "words"])
    table.attrs = {"seed": int(answers["seed"].iloc[0]), "judge": by}
    return table
