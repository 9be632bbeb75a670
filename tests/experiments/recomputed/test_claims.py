"""What the committed page of claims says of losses: means, intervals, p and verdicts, from the records."""

import math
import re
import statistics

import pytest

from experiments.convergence import CLAIMS

from .conftest import REFERENCE, STUDENT_T, Records


def student_above(t, degrees):
    """What Student's t exceeds with this probability: its density integrated by Simpson's rule."""
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))
    # With x = tan(u) the range is finite.
    start, end, steps = math.atan(t), math.pi / 2, 2000
    width = (end - start) / steps

    def density(u):
        return math.cos(u) ** (degrees - 1) / (math.cos(u) ** 2 + math.sin(u) ** 2 / degrees) ** ((degrees + 1) / 2)

    inner = sum((4 if k % 2 else 2) * density(start + k * width) for k in range(1, steps))
    return scale * width / 3 * (density(start) + inner + density(end))


@pytest.mark.parametrize(("t", "degrees"), [(4.302652729911275, 2), (2.7764451051977987, 4)])
def test_the_probability_used_here_is_that_of_the_tables(t, degrees):
    assert student_above(t, degrees) == pytest.approx(0.025, rel=1e-9)


def test_every_row_about_a_loss():
    records = Records(REFERENCE / "convergence")
    page = (REFERENCE.parent / "CLAIMS.md").read_text(encoding="utf-8")
    found = re.findall(
        r"\| test loss, (\S+) minus (\S+), bits per byte: (.*?) \(the claim holds (below|above) 0; 0\.010 is the .*?\) "
        r"\| convergence(?:; | )[^|]*\| \*\*(.*?)\*\*",
        page,
    )
    families = {"loss": [], "order": [], "gap": []}
    declared = {family: sum(claim.family == family for claim in CLAIMS) for family in families}
    for arm, other, measured, side, verdict in found:
        family = "gap" if side == "above" else "order" if other.endswith("-before") else "loss"
        if not {arm, other} <= records.arms.keys():
            assert (measured, verdict) == ("-", "not run")
            continue
        sign = 1 if side == "above" else -1
        ends = [{seed: records.last(each, seed, "test") for seed in records.seeds} for each in (arm, other)]
        values = [ends[0][seed] - ends[1][seed] for seed in records.seeds]
        mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
        inside = student_above(sign * mean / error, len(values) - 1)
        outside = student_above((0.01 - sign * mean) / error, len(values) - 1)
        half = STUDENT_T[len(values) - 1] * error
        shown = f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}], n = {len(values)}, p = "
        families[family].append((2 * min(inside, outside), inside < outside, shown, measured, verdict))
    assert len(families["loss"]) >= 5
    assert len(families["order"]) >= 2
    for family in ("loss", "order"):
        largest = 0.0
        for rank, (p, is_inside, shown, measured, verdict) in enumerate(sorted(families[family])):
            largest = max(largest, min(1.0, (declared[family] - rank) * p))
            assert measured == (shown + f"{largest:.2g}" if largest >= 1e-4 else f"{shown[:-2]}< 0.0001")
            decided = "supported" if is_inside else "not supported"
            assert verdict == (decided if largest < 0.05 else "inconclusive")
