"""The numbers below a million in English and in German words: translations that are always here.

German joins all into one word and says the ones before the tens: "forty-two" is "zweiundvierzig". So a translation has
to look at the right place, and one that is wrong is seen to be.
"""

from pathlib import Path

import numpy as np

from experiments.data.corpus import DataSet
from experiments.data.examples import Examples, examples_of

NAME = "numerals"
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


def load(_: Path | None = None, __: object = None) -> Examples:
    """Always the same numbers, none of them in two splits."""
    import pandas as pd

    numbers = np.random.default_rng(0).choice(10**6, sum(PAIRS.values()), replace=False)
    frames = []
    for part in np.split(numbers, np.cumsum([*PAIRS.values()])[:-1]):
        rows = [(in_english(int(number)), in_german(int(number))) for number in part]
        frames.append(pd.DataFrame(rows, columns=["source", "target"]))
    note = "Numbers below a million in English and in German words, made by this package."
    return examples_of(NAME, frames, "made by its own code", note)


DATA_SET = DataSet(
    name=NAME,
    description="numbers in English words and in German ones, to try translation with.",
    load=load,
    size=" + ".join(f"{count:,}" for count in PAIRS.values()) + " pairs",
)
