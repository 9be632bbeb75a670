"""Numbers in words, in English and in German."""

import pytest

from experiments.data.numerals import PAIRS, in_english, in_german, load


@pytest.mark.parametrize(
    ("number", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (42, "forty-two", "zweiundvierzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (1000, "one thousand", "eintausend"),
        (1066, "one thousand and sixty-six", "eintausendsechsundsechzig"),
        (21_001, "twenty-one thousand and one", "einundzwanzigtausendeins"),
        (101_230, "one hundred and one thousand two hundred and thirty", "einhunderteintausendzweihundertdreißig"),
        (
            999_999,
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
    ],
)
def test_numbers_in_words(number, english, german):
    assert (in_english(number), in_german(number)) == (english, german)


def test_no_number_is_in_two_splits_and_both_languages_tell_all_apart():
    found = load()
    sources = [text for split in PAIRS for text in getattr(found, split)["source"]]
    targets = [text for split in PAIRS for text in getattr(found, split)["target"]]
    assert len({*sources}) == len({*targets}) == len(sources) == sum(PAIRS.values())
    assert found.kind == "translation"
    assert load().sha256 == found.sha256
