"""What the committed page of claims says of losses: means, intervals, p and verdicts, from the records."""

import math
import re
import statistics

from scipy import stats

from experiments.analysis.claims import claims_of
from experiments.studies.convergence.figures import STUDY

from .conftest import REFERENCE, Records, student_t


def holm(p, declared):
    """Adjusted for as many claims as were declared, in the order of ``p``."""
    adjusted, largest = [1.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        adjusted[index] = largest = max(largest, min(1.0, (declared - rank) * p[index]))
    return adjusted


def rows_of_the_study(page):
    """Those of the study's own section, and those of its published claims: studies share variants."""
    published = tuple(f"| {claim.statement} | {claim.published} |" for claim in claims_of(STUDY))
    own = page.partition(f"\n### {STUDY.name}\n")[2].partition("\n### ")[0]
    return "\n".join([own, *(row for row in page.splitlines() if row.startswith(published))])


def test_every_row_about_a_loss():
    records = Records(REFERENCE / "convergence")
    page = (REFERENCE.parent / "CLAIMS.md").read_text(encoding="utf-8")
    found = re.findall(
        r"^\| (.*) \| test loss, (\S+) minus (\S+), bits per byte\. \*\*([a-z ]+)\*\*(?: on convergence)?: "
        r"([^|]*?)(?: \||<br>)",
        rows_of_the_study(page),
        re.MULTILINE,
    )
    families = {"none": [], "learned": [], "sinusoidal": [], "order": []}
    for statement, variant, other, verdict, measured in found:
        family = "order" if other.endswith("-before") else other.rpartition("-")[2]
        ends = [{seed: records.last(each, seed, "test") for seed in records.seeds} for each in (variant, other)]
        values = [ends[0][seed] - ends[1][seed] for seed in records.seeds]
        mean, error = statistics.mean(values), max(statistics.stdev(values), 1e-6) / math.sqrt(len(values))
        within = mean + 0.02 if "helps little (by less than 0.02)" in statement else -mean
        inside = stats.t.sf(within / error, len(values) - 1)
        outside = stats.t.sf((0.01 - within) / error, len(values) - 1)
        half = student_t(len(values) - 1) * error
        shown = f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], n = {len(values)} seeds, adjusted p = "
        families[family].append((2 * inside, 2 * outside, shown, measured, verdict))
    assert len(families["none"]) >= 5
    assert len(families["order"]) >= 2
    for family, rows in families.items():
        declared = sum(claim.family == family for claim in claims_of(STUDY))
        assert declared >= len(rows)
        smaller, larger = (holm([pick(row[:2]) for row in rows], declared) for pick in (min, max))
        for row, least, most in zip(rows, smaller, larger, strict=True):
            inside, outside, shown, measured, verdict = row
            inside, outside = (least, most) if inside < outside else (most, least)
            p = outside if outside < 0.05 else min(inside, outside)
            assert measured == (shown + f"{p:.2g}" if p >= 1e-4 else rf"{shown[:-2]}\< 0.0001")
            decided = "supported" if inside < 0.05 else "inconclusive"
            assert verdict == ("not supported" if outside < 0.05 else decided)
