"""The speed study: what records that lack something say in tables, and about claims and targets."""

from dataclasses import asdict, replace

import msgspec
import pytest

from experiments.records.record import write_record
from experiments.show.rows import read_rows
from experiments.studies.speed.records import Failure, Measurement, Sample, append_record, read_records
from experiments.studies.speed.results import crossings, crossover, memory, rate, times
from experiments.studies.speed.study import COPY, FORWARD, OURS, SDPA, SGEMM, SOFTMAX, STUDY, after, settings
from experiments.studies.speed.targets import targets
from tests.made_up import make_record

from .conftest import RESULTS

CPU = settings("cpu", "cpu")


@pytest.fixture(scope="module")
def records():
    return read_records(RESULTS / "reference/speed")


def timed(topic, length, samples, **other):
    place = {"topic": topic, "direction": FORWARD, "length": length, "chunk_size": 64}
    cases = tuple((sample.case, sample.length) for sample in samples)
    return Measurement(kind="time", **place, cases=cases, samples=samples, **other)


def written(root, records, config=CPU):
    """A comparison with these records."""
    comparison = make_record(experiment="speed", seeds=[], data=[], config=msgspec.to_builtins(asdict(config)))
    write_record(root / "comparison.json", comparison)
    (root / "measurements.jsonl").unlink(missing_ok=True)
    for record in records:
        append_record(root, record)


def test_tables_do_without_what_failed(tmp_path):
    failures = [Failure(OURS, 512, "for the test")]
    place = {"topic": "operation", "direction": "forward+backward", "length": 512, "cases": ((OURS, 512),)}
    records = [
        timed("operation", 512, [Sample(SDPA, 512, [1.0])], failures=failures),
        timed("rate", None, [], failures=failures),
        Measurement(kind="memory", **place, case=OURS, failures=failures),
    ]
    written(tmp_path, records)
    assert set(targets(tmp_path)["verdict"]) == {"not measured"}
    assert times(tmp_path)["ratio"].isna().all()
    assert rate(tmp_path).empty
    assert memory(tmp_path).empty
    assert crossings(tmp_path).empty
    written(tmp_path, [timed("rate", None, [Sample(SGEMM, CPU.gemm_size, [1.0])])])
    assert rate(tmp_path).empty, "the matrix product alone"


def test_a_copy_that_was_timed_bounds_the_operation_too(tmp_path):
    """Forward it moves H·N·(2·M + 2·D) numbers, and a copy of a matrix its numbers twice."""
    config = replace(CPU, heads=2, num_features=6, head_dim=4, gemm_size=100)
    samples = [Sample(SGEMM, 100, [1.0, 2.0]), Sample(COPY, 100, [4.0, 8.0]), Sample(OURS, 1000, [16.0, 16.0])]
    written(tmp_path, [timed("rate", None, samples)], config)
    (share,) = rate(tmp_path)["copy_share"]
    assert share == pytest.approx(2 * 1000 * (2 * 6 + 2 * 4) / (2 * 100**2) * (4 + 8) / 2 / 16)


@pytest.mark.parametrize(("slowest", "told"), [(2.0, [1024]), (0.9, [])])
def test_a_crossing_is_told_where_the_rounds_agree(tmp_path, slowest, told):
    ours, seconds = after(CPU.num_features), {512: [0.5] * 5, 2048: [2.0, slowest, 2.0, slowest, 2.0]}
    samples = {n: [Sample(SOFTMAX, n, taken), Sample(ours, n, [1.0] * 5)] for n, taken in seconds.items()}
    written(tmp_path, [timed("module", n, each) for n, each in samples.items()])
    assert crossings(tmp_path)["value"].tolist() == pytest.approx(told)


def test_crossovers_lie_on_straight_lines_in_log_log():
    lengths = [512, 2048, 8192]
    assert crossover({length: length / 1000 for length in lengths}) == pytest.approx(1000)
    assert crossover({length: 1000 / length for length in lengths}) is None, "ours does not end below the other"
    assert crossover(dict.fromkeys(lengths, 2)) is None, "ours is below from the first"
    assert crossover(dict(zip(lengths, [2, 0.5, 2], strict=True))) == pytest.approx(4096), "the last one counts"


@pytest.mark.parametrize("change", [{"threads": 4}, {"device": "cuda"}])
def test_other_settings_than_the_targets_have_none(change, tmp_path, records):
    written(tmp_path, records[:12], replace(CPU, **change))
    assert "no target" in set(targets(tmp_path)["verdict"]) <= {"no target", "not measured"}


def test_what_failed_leaves_its_claims_undecided(tmp_path, records):
    (record,) = [record for record in records if record.topic == "positions"]
    samples = [sample for sample in record.samples if sample.case != "softmax alibi"]
    failures = [Failure("softmax alibi", 1024, "for the test")]
    failed = msgspec.structs.replace(record, samples=samples, failures=failures)
    written(tmp_path, [failed])
    rows = read_rows(tmp_path, STUDY).claims
    assert rows["alibi-slow"].verdict == "inconclusive"
    assert "softmax alibi, N = 1,024: for the test" in rows["alibi-slow"].remark
    assert rows["softmax-rope-cost"].estimate.n
    assert rows["linear-time"].verdict == "not run"
