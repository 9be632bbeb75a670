"""A table that lost rows gives no claim another value: one that misses a row of its own is not run."""

from pathlib import Path

import numpy as np
import pytest

from experiments.judge.claims import claims_of
from experiments.judge.curves import read_curves
from experiments.judge.references import declared_claims
from experiments.judge.verdicts import NOT_RUN, evaluate
from experiments.records.csv_files import read_table
from experiments.records.record import read_comparison
from experiments.studies.registry import STUDIES

REFERENCE = Path(__file__).parents[3] / "results" / "reference"
STUDIES_WITH_TABLES = (
    pytest.param("decay", marks=pytest.mark.full),
    "denominator",
    "features",
    "length",
    "mask",
    "pairing",
)
NOT_JUDGED = "runs", "bound", "mask"
"""the records of training, and two tables that are for figures"""
SHARES = (0.002, 0.05)
"""of the rows, that are lost: so few that some claims keep all of theirs, and so many that few do"""


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES_WITH_TABLES)
def test_a_claim_without_all_of_its_rows_is_not_run(name, tmp_path):
    for file in (REFERENCE / name).iterdir():
        (tmp_path / file.name).symlink_to(file)
    comparison = read_comparison(tmp_path)
    curves = read_curves(tmp_path, comparison)
    claims = declared_claims(claims_of(STUDIES[comparison.study]), name, comparison.study)

    def judged():
        rows = evaluate(claims, tmp_path, comparison, curves, reference=name)
        return {row.claim.key: (row.estimate, row.verdict) for row in rows}

    whole = judged()
    tables = [path for path in (REFERENCE / name).glob("*.parquet") if path.stem not in NOT_JUDGED]
    assert tables
    for table in tables:
        rows, damaged, not_run = read_table(table), tmp_path / f"{table.stem}.csv", 0
        for share in SHARES:
            kept = np.random.default_rng(0).random(len(rows)) >= share
            if kept.all():
                kept[0] = False
            damaged.write_text(rows[kept].to_csv(index=False))  # which comes before the packed one
            for key, (estimate, verdict) in judged().items():
                if verdict == NOT_RUN:
                    not_run += 1
                else:
                    assert repr(estimate) == repr(whole[key][0]), f"{key} is another without {share:.1%} of the rows"
        assert not_run, f"no claim missed a row of {table.stem}"
        damaged.unlink()
