"""Examples that are always here: film reviews whose verdict comes last, and numerals in English and in German."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.data.examples import Examples, examples_of
from experiments.data.files import Files

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

PAIRS = {"train": 4_000, "validation": 200, "test": 200}
SMALL_EN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
SMALL_DE = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
).split()
TENS_EN = "twenty thirty forty fifty sixty seventy eighty ninety".split()
TENS_DE = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def review(generator: np.random.Generator, label: str) -> str:
    """A review of a random length, all of them about equally likely on a scale of doublings."""
    count = int(np.exp(generator.uniform(np.log(SHORTEST), np.log(LONGEST))))
    verdict = [*VERDICT, *WORDS[label] * 2]
    begin = count - count // 3
    return " ".join([*generator.choice(STORY, begin), *generator.choice(verdict, count - begin)])


@dataclass(frozen=True, kw_only=True)
class LateVerdicts(Files):
    """Made-up film reviews that tell what happens first and what the writer thinks last, always the same ones.

    The words of the verdict are a text's last third, and texts are of very different lengths. So how much of a text is
    read decides how many can be told apart, and no more than a few words have to be learnt for it.
    """

    def load(self, *_: Path | None) -> Examples:
        import pandas as pd

        generator, labels = np.random.default_rng(0), tuple(WORDS)
        frames = []
        for count in REVIEWS.values():
            chosen = [labels[number] for number in generator.integers(0, len(labels), count)]
            rows = [(review(generator, label), label) for label in chosen]
            frames.append(pd.DataFrame(rows, columns=["text", "label"]))
        note = (
            f"Reviews of {SHORTEST} to {LONGEST:,} words, made by this package of random words; the verdict is in the "
            "last third of each."
        )
        return examples_of(self.name, frames, "made by its own code", note, classes=labels)


def in_english(number: int) -> str:
    """A number below a million."""
    if number >= 1000:
        thousands, rest = divmod(number, 1000)
        joint = " and " if 0 < rest < 100 else " "
        return f"{in_english(thousands)} thousand" + (joint + in_english(rest) if rest else "")
    if number >= 100:
        hundreds, rest = divmod(number, 100)
        return f"{SMALL_EN[hundreds]} hundred" + (f" and {in_english(rest)}" if rest else "")
    if number < 20:
        return SMALL_EN[number]
    tens, ones = divmod(number, 10)
    return TENS_EN[tens - 2] + (f"-{SMALL_EN[ones]}" if ones else "")


def in_german(number: int) -> str:
    """The same in German, one word."""
    for size, word in ((1000, "tausend"), (100, "hundert")):
        if number >= size:
            many, rest = divmod(number, size)
            return _counting(many) + word + (in_german(rest) if rest else "")
    if number < 20:
        return SMALL_DE[number]
    tens, ones = divmod(number, 10)
    return (f"{_counting(ones)}und" if ones else "") + TENS_DE[tens - 2]


def _counting(number: int) -> str:
    """A numeral as it stands before what it counts: einundzwanzig, hunderteintausend."""
    word = in_german(number)
    return word.removesuffix("s") if number % 100 == 1 else word


@dataclass(frozen=True, kw_only=True)
class Numerals(Files):
    """The numbers below a million in words; always the same, none of them in two splits.

    German joins all into one word and says the ones before the tens: "forty-two" is "zweiundvierzig". So a translation
    has to look at the right place, and one that is wrong is seen to be.
    """

    def load(self, *_: Path | None) -> Examples:
        import pandas as pd

        numbers = np.random.default_rng(0).choice(10**6, sum(PAIRS.values()), replace=False)
        frames = []
        for part in np.split(numbers, np.cumsum([*PAIRS.values()])[:-1]):
            rows = [(in_english(int(number)), in_german(int(number))) for number in part]
            frames.append(pd.DataFrame(rows, columns=["source", "target"]))
        note = "Numbers below a million in English and in German words, made by this package."
        return examples_of(self.name, frames, "made by its own code", note)
