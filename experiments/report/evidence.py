"""What a report, the overview and the page of claims say of a comparison, read once from its files."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.analysis.claims import claims_of
from experiments.analysis.curves import read_curves
from experiments.analysis.references import declared_claims
from experiments.analysis.statistics import summarise
from experiments.analysis.verdicts import Row, evaluate
from experiments.records.record import read_comparison
from experiments.records.schema import Comparison
from experiments.records.store import check_runs
from experiments.report.answer import Findings, answer
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
        said: str = resolve(self.study.answer or answer)(found)
        return said if finished == planned else f"{said} ({finished} of {planned} runs have finished; only they count.)"


def read_evidence(root: Path, study: Study) -> Evidence:
    """Read a comparison. Raises ValueError if it is none, or one of its files is not as it says."""
    comparison = read_comparison(root)
    check_runs(root, comparison)
    check_trials(root, comparison)
    curves = read_curves(root, comparison)
    claims = declared_claims(claims_of(study), comparison.name, study.name)
    rows = evaluate(claims, root, comparison, curves, reference=comparison.name, command=comparison.command)
    return Evidence(root, study, comparison, curves, summarise(root, comparison, curves), rows)
