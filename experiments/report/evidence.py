"""What a report, the overview and the page of claims say of a comparison, read once from its files."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.judge.claims import claims_of
from experiments.judge.curves import read_curves
from experiments.judge.references import declared_claims
from experiments.judge.runs import Runs
from experiments.judge.statistics import summarise
from experiments.judge.verdicts import Row, evaluate
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.records.store import check_runs, with_baseline
from experiments.show.keys import shown_of
from experiments.show.rows import Rows
from experiments.show.words import headline, in_figures, in_words, listed, ranking
from experiments.study import Study
from experiments.train.tuning import check_trials


class Evidence(NamedTuple):
    """A comparison with its tables and its judged claims."""

    root: Path
    study: Study
    comparison: Comparison
    curves: pd.DataFrame
    summary: pd.DataFrame
    rows: list[Row]
    """every claim of the study that is judged on a comparison of this name"""

    @property
    def tables(self) -> list[str]:
        """The files of those tables that have rows."""
        found = {"curves.csv": self.curves, "summary.csv": self.summary}
        return [name for name, table in found.items() if len(table)]

    @property
    def shown(self) -> Rows:
        """What its words, figures and tables are made of."""
        return Rows(self.root, self.study, self.comparison, self.curves, self.summary, self.rows)

    @property
    def answer(self) -> str:
        """The answer in a sentence or two, with its numbers; and how much of it is there yet."""
        tested = self.summary.drop_duplicates("variant")  # the first row of each tells of the test split
        finished, planned = int(tested["n"].sum()), int(tested["planned"].sum())
        if planned and not finished:
            return "No run has finished yet."
        shown = self.shown
        unlearnt = Runs(self.root, self.comparison, self.curves).unlearnt
        said = ""
        if len(unlearnt) < len(ranking(shown)) or not unlearnt:
            said = headline(shown, shown_of(self.study))
        said = " ".join(filter(None, [said, below_the_floor(shown, unlearnt)]))
        return said if finished == planned else f"{said} ({finished} of {planned} runs have finished; only they count.)"


def below_the_floor(rows: Rows, unlearnt: Collection[str]) -> str:
    """Which variants have learnt nothing that can be told; empty if all have."""
    comparison, means = rows.comparison, ranking(rows)
    if not unlearnt or comparison.floor is None:
        return ""
    names = [in_words(rows.variants[name]) for name in means if name in unlearnt]
    than = f"better than the floor ({comparison.floor.name}: {in_figures(comparison.floor.value, comparison)})"
    if len(names) == len(means):
        best = in_figures(next(iter(means.values())), comparison)
        return f"Nothing was learnt: no variant is clearly {than}; the best has {best}."
    if len(names) > 2:
        return f"{len(names)} of {len(means)} variants are not clearly {than}."
    said = listed(names)
    return f"{said[0].upper()}{said[1:]} {'is' if len(names) == 1 else 'are'} not clearly {than}."


def read_evidence(root: Path, study: Study, baseline: str | None = None) -> Evidence:
    """Read a comparison, maybe with another baseline than is on record.

    Raises ValueError if it is none, or has no such variant, or one of its files is not as it says.
    """
    comparison = with_baseline(read_comparison(root), baseline)
    check_runs(root, comparison)
    check_trials(root, comparison)
    curves = read_curves(root, comparison)
    claims = declared_claims(claims_of(study), comparison.name, study.name)
    rows = evaluate(claims, root, comparison, curves, reference=comparison.name, command=comparison.command)
    return Evidence(root, study, comparison, curves, summarise(root, comparison, curves), rows)
