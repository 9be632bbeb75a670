"""Made-up reviews whose verdict stands at the end."""

from experiments.data.late_verdicts import LONGEST, REVIEWS, SHORTEST, WORDS, load


def test_the_verdict_is_in_the_last_third_and_nowhere_else():
    found = load()
    assert {split: len(getattr(found, split)) for split in REVIEWS} == REVIEWS
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


def test_it_is_the_same_every_time_and_has_both_labels_in_every_split():
    found = load()
    assert found.sha256 == load().sha256
    assert found.classes == ("negative", "positive")
    for split in REVIEWS:
        share = (getattr(found, split)["label"] == "positive").mean()
        assert 0.35 < share < 0.65
