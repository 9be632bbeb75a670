"""The claims about cost read the quantities that they name, and a missing measurement is no verdict."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from experiments.analysis.verdicts import evaluate
from experiments.studies.speed import study as speed
from experiments.studies.speed.claims import CLAIMS
from experiments.studies.speed.settings import AFTER, OURS, SDPA, SGEMM, SOFTMAX, SpeedConfig

CONFIG = SpeedConfig()
COMPARISON = {
    "experiment": "speed", "preset": "cpu", "variants": [], "seeds": [], "data": [], "config": asdict(CONFIG)
}  # fmt: skip
ADDED = {"rope": 0.02, "rope before": 0.02, "rope after": 0.08, "alibi": 0.3}


def seconds_of(measurement, name, length):
    """Linear and 10 µs a token, softmax quadratic and equal to it at 1,024 tokens; RoPE after the map costs 8 %."""
    if measurement.topic == "decoding":
        return 2e-3 if name == AFTER else 1e-6 * length
    if measurement.topic == "positions":
        return 0.1 * (1 + ADDED.get(name.partition(" ")[2], 0))
    return 1e-5 * (length**2 / 1024 if name in (SOFTMAX, SDPA) else length)


@pytest.fixture
def records():
    """What a complete run would leave: five rounds, each slower than the one before."""
    rows = []
    for measurement in speed.planned(CONFIG):
        row = measurement._asdict()
        if measurement.kind == "memory":
            ((name, length),) = measurement.cases
            rise = round(length * 50_000 * (1 + 1e-3 * np.sin(length)))
            row |= {"case": name, "rise": rise, "returned": length * 10_000, "method": "made up"}
        else:
            samples = []
            for name, length in measurement.cases:
                noise = 1 + 1e-3 * np.sin(7 * len(samples) + length + np.arange(5))
                drift = np.linspace(1, 2, 5)
                sample = {"case": name, "length": length}
                sample["seconds"] = list(seconds_of(measurement, name, length) * noise * drift)
                if measurement.topic == "decoding":
                    sample["state_bytes"] = 4_000_000 if name == AFTER else 8192 * length
                samples.append(sample)
            row |= {"samples": samples, "chunk_size": 64}
        rows.append(row)
    return rows


def rows_of(root, records):
    lines = [json.dumps(row) + "\n" for row in records]
    (root / "measurements.jsonl").write_text("".join(lines))
    rows = evaluate(CLAIMS, root, COMPARISON, pd.DataFrame(), reference="speed", command="run")
    return {row.claim.key: row for row in rows}


def test_every_claim_reads_the_quantity_that_it_names(tmp_path, records):
    rows = rows_of(tmp_path, records)
    expected = {
        "linear-time": 1, "quadratic-softmax": 2, "linear-memory": 1, "constant-state": 1, "constant-token": 1,
        "operation-faster": 16, "module-faster": 16, "softmax-rope-cost": 0.02, "favor+-rope-before-cost": 0.02,
        "favor+-rope-after-cost": 0.08, "elu+1-rope-before-cost": 0.02, "elu+1-rope-after-cost": 0.08,
        "alibi-slow": 1.3 / 1.02 - 1,
    }  # fmt: skip
    assert {key: row.estimate.mean for key, row in rows.items()} == pytest.approx(expected, rel=3e-3, abs=3e-3)
    dear = {"favor+-rope-after-cost", "elu+1-rope-after-cost"}
    verdicts = {key: row.verdict for key, row in rows.items()}
    assert verdicts == {key: "not supported" if key in dear else "supported" for key in expected}
    assert rows["linear-memory"].estimate.n == len(CONFIG.lengths) - 1
    assert rows["constant-state"].estimate.n == len(CONFIG.contexts) - 1
    assert rows["quadratic-softmax"].remark == "N = 8,192 and 16,384. the lengths were timed in rounds of their own"
    assert rows["linear-time"].remark == "N = 8,192 and 16,384"


def test_a_reference_from_before_the_positions_has_no_verdict_on_them(tmp_path, records):
    rows = rows_of(tmp_path, [row for row in records if row["topic"] != "positions"])
    assert {key for key, row in rows.items() if row.verdict == "not run"} == {
        row.claim.key for row in rows.values() if row.claim.family == "positions"
    }


def test_nothing_measured_is_nothing_decided(tmp_path):
    assert {row.verdict for row in rows_of(tmp_path, []).values()} == {"not run"}


def test_what_failed_leaves_its_claims_undecided(tmp_path, records):
    (row,) = [row for row in records if row["topic"] == "positions"]
    row["samples"] = [sample for sample in row["samples"] if sample["case"] != "softmax alibi"]
    row["failures"] = [{"case": "softmax alibi", "length": 1024, "reason": "for the test"}]
    rows = rows_of(tmp_path, records)
    assert rows["alibi-slow"].verdict == "inconclusive"
    assert "softmax alibi, N = 1,024: for the test" in rows["alibi-slow"].remark
    assert rows["softmax-rope-cost"].verdict == "supported"


def test_slopes_are_of_the_largest_lengths_in_the_same_rounds(tmp_path, records):
    (rate,) = [row for row in records if (row["topic"], row["direction"]) == ("rate", "forward+backward")]
    for sample in rate["samples"]:
        if (sample["case"], sample["length"]) == (OURS, max(CONFIG.lengths)):
            sample["seconds"] = [2 * x for x in sample["seconds"]]
    assert rate["samples"][0]["case"] == SGEMM
    row = rows_of(tmp_path, records)["linear-time"]
    assert row.estimate.mean == pytest.approx(2, abs=3e-3)
    assert row.verdict == "not supported"
