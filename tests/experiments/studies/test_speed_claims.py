"""The speed study: what records that lack something say in tables, and about claims and targets."""

from dataclasses import asdict, replace

import msgspec
import pandas as pd
import pytest

from experiments.records.record import write_record
from experiments.studies.speed.records import (
    Failure,
    MemoryMeasurement,
    Sample,
    TimeMeasurement,
    append_record,
    read_records,
)
from experiments.studies.speed.results import crossings, crossover, memory, rate, times
from experiments.studies.speed.study import FORWARD, OURS, SDPA, SGEMM, STUDY, settings
from experiments.studies.speed.targets import targets
from tests.made_up import make_record

from .conftest import RESULTS, judged

CPU = settings("cpu", "cpu")


@pytest.fixture(scope="module")
def records():
    return read_records(RESULTS / "reference/speed")


def timed(topic, length, samples, **other):
    place = {"topic": topic, "direction": FORWARD, "length": length, "chunk_size": 64}
    cases = tuple((sample.case, sample.length) for sample in samples)
    return TimeMeasurement(**place, cases=cases, samples=samples, **other)


def written(root, records, config=CPU):
    """A comparison with these records."""
    comparison = make_record(experiment="speed", seeds=[], data=[], config=msgspec.to_builtins(asdict(config)))
    write_record(root / "comparison.json", comparison)
    (root / "measurements.jsonl").unlink(missing_ok=True)
    for record in records:
        append_record(root, record)
    return root, comparison


def test_tables_do_without_what_failed(tmp_path):
    failures = [Failure(OURS, 512, "for the test")]
    place = {"topic": "operation", "direction": "forward+backward", "length": 512, "cases": ((OURS, 512),)}
    records = [
        timed("operation", 512, [Sample(SDPA, 512, [1.0])], failures=failures),
        timed("rate", None, [], failures=failures),
        MemoryMeasurement(**place, case=OURS, failures=failures),
    ]
    written(tmp_path, records)
    assert set(targets(tmp_path)["verdict"]) == {"not measured"}
    assert times(tmp_path)["ratio"].isna().all()
    assert rate(tmp_path).empty
    assert memory(tmp_path).empty
    assert crossings(tmp_path).empty
    written(tmp_path, [timed("rate", None, [Sample(SGEMM, CPU.gemm_size, [1.0])])])
    assert rate(tmp_path).empty, "the matrix product alone"


def test_crossovers_lie_on_straight_lines_in_log_log():
    lengths = [512, 2048, 8192]
    assert crossover({length: length / 1000 for length in lengths}) == pytest.approx(1000)
    assert crossover({length: 1000 / length for length in lengths}) is None, "ours does not end below the other"
    assert crossover(dict.fromkeys(lengths, 2)) is None, "ours is below from the first"
    assert crossover(dict(zip(lengths, [2, 0.5, 2], strict=True))) == pytest.approx(4096), "the last one counts"


@pytest.mark.parametrize("change", [{"threads": 4}, {"device": "cuda"}, {"heads": 4}])
def test_other_settings_than_the_targets_have_none(change, tmp_path, records):
    written(tmp_path, records[:12], replace(CPU, **change))
    assert "no target" in set(targets(tmp_path)["verdict"]) <= {"no target", "not measured"}


def test_what_failed_leaves_its_claims_undecided(tmp_path, records):
    (record,) = [record for record in records if record.topic == "positions"]
    samples = [sample for sample in record.samples if sample.case != "softmax alibi"]
    failures = [Failure("softmax alibi", 1024, "for the test")]
    failed = msgspec.structs.replace(record, samples=samples, failures=failures)
    rows = judged(STUDY, *written(tmp_path, [failed]), pd.DataFrame())
    assert rows["alibi-slow"].verdict == "inconclusive"
    assert "softmax alibi, N = 1,024: for the test" in rows["alibi-slow"].remark
    assert rows["softmax-rope-cost"].estimate.n
    assert rows["linear-time"].verdict == "not run"
