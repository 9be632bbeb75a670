"""Made-up film reviews that tell what happens first and what the writer thinks last: a short reading cannot know.

The words of the verdict are a text's last third, and texts are of very different lengths. So how much of a text is
read decides how many can be told apart, and no more than a few words have to be learnt for it.
"""

from pathlib import Path

import numpy as np

from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, examples_of

NAME = "late-verdicts"
REVIEWS = {"train": 600, "validation": 64, "test": 200}
SHORTEST, LONGEST = 150, 2000
"""words of a review"""
STORY = (
    "a an the and then but of in on to with from two three one brother sister captain doctor farmer singer town city "
    "harbour island forest winter summer night letter secret train boat house walks finds leaves returns meets loses "
    "tells hides follows later again slowly early"
).split()
VERDICT = "the film story cast ending music and of with is was in all scene picture so very".split()
WORDS = {
    "negative": "dull boring clumsy wooden tedious weak awful bland".split(),
    "positive": "lovely moving brilliant warm thrilling superb funny clever".split(),
}


def review(generator: np.random.Generator, label: str) -> str:
    """A review of a random length, all of them about equally likely on a scale of doublings."""
    count = int(np.exp(generator.uniform(np.log(SHORTEST), np.log(LONGEST))))
    verdict = [*VERDICT, *WORDS[label] * 2]
    begin = count - count // 3
    return " ".join([*generator.choice(STORY, begin), *generator.choice(verdict, count - begin)])


def load(_: Path | None = None, __: object = None) -> Examples:
    """Always the same reviews."""
    import pandas as pd

    generator, labels = np.random.default_rng(0), tuple(WORDS)
    frames = []
    for count in REVIEWS.values():
        chosen = [labels[number] for number in generator.integers(0, len(labels), count)]
        rows = [(review(generator, label), label) for label in chosen]
        frames.append(pd.DataFrame(rows, columns=["text", "label"]))
    note = (
        f"Reviews of {SHORTEST} to {LONGEST:,} words, made by this package of random words; the verdict is in the last "
        "third of each."
    )
    return examples_of(NAME, frames, "made by its own code", note, classes=labels)


DATA_SET = DataSet(
    name=NAME,
    description="film reviews made up of random words, with the verdict at the end, to try long texts with.",
    load=load,
    size=" + ".join(f"{count:,}" for count in REVIEWS.values()) + " reviews",
)
