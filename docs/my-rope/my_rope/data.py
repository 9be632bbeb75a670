"""Data sets that their own code makes."""

from experiments.data.corpus import DataSet, corpus_of_text

TEXT = " ".join(map(str, range(20_000))).encode()


def read_backwards(corpus, config):
    """The objective of BACKWARDS. It is imported when it is needed: `list` should not wait for PyTorch."""
    from my_rope.objectives import ReadBackwards

    return ReadBackwards(corpus, config)


COUNTING = DataSet(
    "counting", "the numbers from 0 to 19,999 in words of digits", lambda *_: corpus_of_text("counting", TEXT)
)
BACKWARDS = DataSet(
    "backwards",
    "stretches of counting, half of them backwards: which are?",
    lambda *_: corpus_of_text("backwards", TEXT),
    objective=read_backwards,
)
