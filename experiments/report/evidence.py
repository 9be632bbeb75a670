"""What a report, the overview and the page of claims say of a comparison, read once from its files."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.analysis.claims import claims_of
from experiments.analysis.curves import read_curves
from experiments.analysis.references import declared_claims
from experiments.analysis.runs import Runs
from experiments.analysis.statistics import summarise
from experiments.analysis.verdicts import Row, evaluate
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.records.store import check_runs, with_baseline
from experiments.report.answer import Findings, answer, in_figures, in_words, listed
from experiments.study import Study, resolve
from experiments.training.tuning import check_trials


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
    def answer(self) -> str:
        """The answer in a sentence or two, with its numbers; and how much of it is there yet."""
        tested = self.summary.drop_duplicates("variant")  # the first row of each tells of the test split
        finished, planned = int(tested["n"].sum()), int(tested["planned"].sum())
        if planned and not finished:
            return "No run has finished yet."
        found = Findings(self.comparison, self.summary, {row.claim.key: row for row in self.rows}, self.root)
        unlearnt = Runs(self.root, self.comparison, self.curves).unlearnt
        said = ""
        if len(unlearnt) < len(found.finished) or not unlearnt:
            said = resolve(self.study.answer or answer)(found)
        said = " ".join(filter(None, [said, below_the_floor(found, unlearnt)]))
        return said if finished == planned else f"{said} ({finished} of {planned} runs have finished; only they count.)"


def below_the_floor(found: Findings, unlearnt: Collection[str]) -> str:
    """Which variants have learnt nothing that can be told; empty if all have."""
    comparison = found.comparison
    if not unlearnt or comparison.floor is None:
        return ""
    names = [in_words(variant) for variant in found.finished if variant.name in unlearnt]
    than = f"better than the floor ({comparison.floor.name}: {in_figures(comparison.floor.value, comparison)})"
    if len(names) == len(found.finished):
        best = in_figures(found.final(found.finished[0].name).mean, comparison)
        return f"Nothing was learnt: no variant is clearly {than}; the best has {best}."
    if len(names) > 2:
        return f"{len(names)} of {len(found.finished)} variants are not clearly {than}."
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
