"""Made-up reviews whose verdict stands at the end, and numbers in words."""

from experiments.data.made_up import LONGEST, PAIRS, REVIEWS, SHORTEST, WORDS, in_english, in_german
from experiments.data.registry import load_data


def test_the_verdict_is_in_the_last_third_and_nowhere_else():
    found = load_data("late-verdicts")
    assert found.describe().splits == REVIEWS
    assert found.sha256 == load_data("late-verdicts").sha256
    assert found.classes == ("negative", "positive")
    lengths = []
    for row in found.train.itertuples():
        words = row.text.split()
        begin = len(words) - len(words) // 3
        (other,) = {*WORDS} - {row.label}
        assert not {*words[:begin]} & {word for label in WORDS for word in WORDS[label]}
        assert {*words[begin:]} & {*WORDS[row.label]}
        assert not {*words[begin:]} & {*WORDS[other]}
        lengths.append(len(words))
    assert SHORTEST <= min(lengths) < 256
    assert 1900 < max(lengths) <= LONGEST
    for split in REVIEWS:
        assert 0.35 < (getattr(found, split)["label"] == "positive").mean() < 0.65


def test_numbers_in_words():
    for number, english, german in (
        (0, "zero", "null"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (101, "one hundred and one", "einhunderteins"),
        (1066, "one thousand and sixty-six", "eintausendsechsundsechzig"),
        (21_001, "twenty-one thousand and one", "einundzwanzigtausendeins"),
        (101_230, "one hundred and one thousand two hundred and thirty", "einhunderteintausendzweihundertdreißig"),
    ):
        assert (in_english(number), in_german(number)) == (english, german)


def test_no_number_is_in_two_splits_and_both_languages_tell_all_apart():
    found = load_data("numerals")
    assert found.describe().splits == PAIRS
    for side in ("source", "target"):
        texts = [text for split in PAIRS for text in getattr(found, split)[side]]
        assert len({*texts}) == len(texts)
    assert found.kind == "translation"
    assert load_data("numerals").sha256 == found.sha256
