"""What the committed table of claims says of losses: means, intervals, p and verdicts, from the records."""

import csv
import math
import re
import statistics

import pytest
from scipy import stats

from experiments.judge.claims import claims_of
from experiments.studies.registry import STUDIES

from .conftest import REFERENCE, Records, student_t


def holm(p, declared):
    """Adjusted for as many claims as were declared, in the order of ``p``."""
    adjusted, largest = [1.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        adjusted[index] = largest = max(largest, min(1.0, (declared - rank) * p[index]))
    return adjusted


def test_every_row_about_a_loss():
    records = Records(REFERENCE / "convergence")
    families = {"none": [], "learned": [], "sinusoidal": [], "order": []}
    for row in csv.DictReader((REFERENCE.parent / "claims.csv").read_text(encoding="utf-8").splitlines()):
        compared = re.fullmatch(r"test loss, (\S+) minus (\S+), bits per byte", row["quantity"])
        if row["comparison"] != "convergence" or compared is None:
            continue
        variant, other = compared.groups()
        family = "order" if other.endswith("-before") else other.rpartition("-")[2]
        ends = [{seed: records.last(each, seed, "test") for seed in records.seeds} for each in (variant, other)]
        values = [ends[0][seed] - ends[1][seed] for seed in records.seeds]
        mean, error = statistics.mean(values), max(statistics.stdev(values), 1e-6) / math.sqrt(len(values))
        within = mean + 0.02 if "helps little (by less than 0.02)" in row["statement"] else -mean
        inside = stats.t.sf(within / error, len(values) - 1)
        outside = stats.t.sf((0.01 - within) / error, len(values) - 1)
        half = student_t(len(values) - 1) * error
        assert (int(row["n"]), row["unit"]) == (len(values), "seeds")
        found = [float(row[name]) for name in ("mean", "low", "high")]
        assert found == pytest.approx([mean, mean - half, mean + half], abs=1e-5)
        families[family].append((2 * inside, 2 * outside, row))
    assert len(families["none"]) >= 5
    assert len(families["order"]) >= 2
    for family, rows in families.items():
        declared = sum(claim.family == family for claim in claims_of(STUDIES["convergence"]))
        assert declared >= len(rows)
        smaller, larger = (holm([pick(row[:2]) for row in rows], declared) for pick in (min, max))
        for (inside, outside, row), least, most in zip(rows, smaller, larger, strict=True):
            inside, outside = (least, most) if inside < outside else (most, least)
            p = outside if outside < 0.05 else min(inside, outside)
            assert float(row["adjusted_p"]) == pytest.approx(p, rel=1e-4)
            decided = "supported" if inside < 0.05 else "inconclusive"
            assert row["verdict"] == ("not supported" if outside < 0.05 else decided)
