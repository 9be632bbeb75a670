"""What each study says of a committed comparison: verdicts as in claims.csv, headline, figures and tables.

After a wanted change ``python -m tests.experiments.studies.test_shown`` writes shown.md anew, for a person to read.
"""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from experiments.records.files import visible
from experiments.records.record import read_comparison
from experiments.show import entries
from experiments.show.keys import shown_of
from experiments.show.rows import read_rows
from experiments.show.words import headline
from experiments.studies.registry import STUDIES
from experiments.study import TableEntry

from .conftest import RESULTS, made_alone

SHOWN = Path(__file__).with_name("shown.md")
RECORDED = [
    *("convergence", "decay", "denominator", "features", "forgetting", "glue-mrpc", "length", "mask"),
    *("length-forgetting", "long-documents", "mlm", "pairing", "positions", "recall", "speed"),
    *("tokens", "translation"),
]
COMPARISONS = [f"reference/{name}" for name in RECORDED] + ["recipe/recipe-adamw-0.9"]


@cache
def rows(name):
    return read_rows(RESULTS / name, STUDIES[read_comparison(RESULTS / name).study])


def shown(name: str, output: Path) -> Iterator[str]:
    """The lines of a section."""
    yield from (f"## {name}", "", headline(rows(name), shown_of(rows(name).study)), "")
    for entry in entries.entries_of(rows(name), output):
        if isinstance(entry, TableEntry):
            for line in [entry.table.columns, *entry.table.to_numpy(dtype=object)]:
                yield f"| {' | '.join(map(str, line))} |"
        else:
            yield f"{entry.stem}.svg: {entry.title}"
        yield ""


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("draws", [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.full])])
def test_what_is_said_of_a_committed_comparison(name, draws, tmp_path, monkeypatch):
    monkeypatch.setattr(entries.style, "save_figure", made_alone if draws else lambda *_: False)
    _, _, section = SHOWN.read_text(encoding="utf-8").partition(f"## {name}\n")
    wanted = [f"## {name}", *section.partition("\n## ")[0].splitlines()]
    said = [line for line in shown(name, tmp_path) if line]
    assert said == [line for line in wanted if line and (draws or ".svg: " not in line)]


@pytest.mark.parametrize("name", RECORDED)
def test_verdicts_and_remarks_are_those_of_the_table_of_claims(name):
    table = csv.DictReader((RESULTS / "claims.csv").read_text(encoding="utf-8").splitlines())
    committed = {row["claim"]: row for row in table if row["comparison"] == name}
    found = rows(f"reference/{name}").claims
    told = {key: (row["verdict"], row["remark"]) for key, row in committed.items()}
    assert told == {key: (row.verdict, visible(row.remark)) for key, row in found.items()}


if __name__ == "__main__":
    entries.style.save_figure = made_alone
    lines = (line for name in COMPARISONS for line in shown(name, Path()))
    SHOWN.write_text("\n".join(["# What studies say of committed comparisons", "", *lines]) + "\n", encoding="utf-8")
