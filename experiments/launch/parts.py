"""Shares of a comparison's runs, for job arrays: ``--part 2/8`` trains the second of eight."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from experiments.launch.launcher import Run

MOST_PARTS = 10_000
SHARES = ("--part", "--for")
"""options that say which runs are trained now"""


class Part(NamedTuple):
    number: int
    """from 1"""
    of: int

    def __str__(self) -> str:
        return f"part {self.number}/{self.of}"

    def share(self, runs: list[Run]) -> list[Run]:
        """Its runs: every so many-th, so that the parts are about equal, and always the same ones."""
        return runs[self.number - 1 :: self.of]


def parse_part(text: str) -> Part:
    """The part in a text such as "2/8". Raises ValueError if it is none."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
    part = Part(int(found[1]), int(found[2])) if found else Part(0, 0)
    if not 1 <= part.number <= part.of <= MOST_PARTS:
        raise ValueError(f"--part is {text!r}; give K/N with K from 1 to N and N up to {MOST_PARTS:,}, as 2/8")
    return part


def without_part(words: Sequence[str]) -> list[str]:
    """The words of a command line but for ``--part`` and ``--for``: the command of all runs together."""
    return [
        word for before, word in pairwise(("", *words)) if before not in SHARES and word.partition("=")[0] not in SHARES
    ]
