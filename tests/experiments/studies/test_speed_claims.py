"""The speed study: what made-up records say in tables and figures, and about claims and targets."""

from dataclasses import asdict, replace

import msgspec
import numpy as np
import pandas as pd
import pytest

from experiments.records.record import write_record
from experiments.studies.speed.measure import planned
from experiments.studies.speed.records import Failure, MemoryMeasurement, Sample, TimeMeasurement, append_record
from experiments.studies.speed.results import Results, crossings, crossover, memory, rate, rates, shown, times
from experiments.studies.speed.study import (
    AFTER,
    COPY,
    FORWARD,
    NONE,
    OURS,
    PERFORMER,
    SDPA,
    SGEMM,
    SOFTMAX,
    STEP,
    STUDY,
    after,
    settings,
)
from experiments.studies.speed.targets import targets
from tests.made_up import make_record

from .conftest import headline_of, judged, opened

CPU = settings("cpu", "cpu")
GEMM_RATE = 3e11
ADDED = {"rope": 0.02, "rope before": 0.02, "rope after": 0.08, "alibi": 0.3}


def made_up_seconds(topic, name, length):
    """Ours is linear, softmax quadratic and equal to it at 1,024 tokens, the peer 50 times slower."""
    if name == SGEMM:
        return 2 * length**3 / GEMM_RATE
    if topic == "decays":
        return 0.1 if name in ("softmax rope", "favor+ rope before", "elu+1 rope after") else 0.105
    if topic == "positions":
        return 0.1 * (1 + ADDED.get(name.partition(" ")[2], 0))
    if topic == "decoding" and name == AFTER:
        return 2e-3
    if name in (SOFTMAX, SDPA):
        return 1e-5 * length**2 / 1024
    return {after(128): 0.8e-5, NONE: 0.98e-5, PERFORMER: 50e-5}.get(name, 1e-5) * length


def timed(topic, direction, length, samples, **other):
    samples = [Sample(*sample) for sample in samples]
    places = tuple((sample.case, sample.length) for sample in samples)
    return TimeMeasurement(
        topic=topic, direction=direction, length=length, cases=places, samples=samples, chunk_size=64, **other
    )


def made_up_records(slower=1.0, spread=0.0, drift=0.0):
    """What a complete run would leave, of five rounds; ``slower`` multiplies our times and memory."""
    for plan in planned(CPU):
        ours = {name: 1.0 if name in (SGEMM, SOFTMAX, SDPA, PERFORMER) else slower for name, _ in plan.cases}
        if isinstance(plan, MemoryMeasurement):
            factor = (100 if plan.case == PERFORMER else ours[plan.case]) * (1 + spread * np.sin(plan.length))
            sizes = {"rise": int(plan.length * 50_000 * factor), "returned": plan.length * 10_000}
            yield msgspec.structs.replace(plan, **sizes)
            continue
        samples = []
        for index, (name, length) in enumerate(plan.cases):
            seconds = made_up_seconds(plan.topic, name, length) * ours[name] * np.linspace(1, 1 + drift, 5)
            seconds *= 1 + spread * np.sin(7 * index + length + np.arange(5))
            parameters = 3_220_992 if plan.topic == "training" else None
            state = (4_000_000 if name == AFTER else 8192 * length) if plan.topic == "decoding" else None
            samples.append((name, length, seconds.tolist(), parameters, None if name == PERFORMER else state))
        yield timed(plan.topic, plan.direction, plan.length, samples)


def written(root, records, config=CPU):
    """A comparison with these records."""
    comparison = make_record(experiment="speed", seeds=[], data=[], config=msgspec.to_builtins(asdict(config)))
    write_record(root / "comparison.json", comparison)
    (root / "measurements.jsonl").unlink(missing_ok=True)
    for record in records:
        append_record(root, record)
    return root, comparison


def targets_of(root, records, config=CPU):
    written(root, records, config)
    return targets(root).set_index("what")


def test_tables_do_without_what_failed(tmp_path):
    failures = [Failure(OURS, 512, "for the test")]
    place = {"topic": "operation", "direction": "forward+backward", "length": 512, "cases": ((OURS, 512),)}
    records = [
        timed("operation", FORWARD, 512, [(SDPA, 512, [1.0])], failures=failures),
        timed("rate", FORWARD, None, [], failures=failures),
        MemoryMeasurement(**place, case=OURS, failures=failures),
    ]
    found = targets_of(tmp_path, records)
    assert set(found["verdict"]) == {"not measured"}
    assert times(tmp_path)["ratio"].isna().all()
    assert rate(tmp_path).empty
    assert memory(tmp_path).empty
    assert crossings(tmp_path).empty
    written(tmp_path, [timed("rate", FORWARD, None, [(SGEMM, CPU.gemm_size, [1.0])])])
    assert rate(tmp_path).empty, "the matrix product alone"


def test_a_copy_that_was_timed_bounds_the_operation_too(tmp_path):
    """Forward it moves H·N·(2·M + 2·D) numbers, and a copy of a matrix its numbers twice."""
    config = replace(CPU, heads=2, num_features=6, head_dim=4, gemm_size=100)
    limits = [(SGEMM, 100, [1.0, 2.0]), (COPY, 100, [4.0, 8.0])]
    written(tmp_path, [timed("rate", FORWARD, None, [*limits, (OURS, 1000, [16.0, 16.0])])], config)
    table = rate(tmp_path)
    assert table["length"].tolist() == [1000]
    moved, copied = 2 * 1000 * (2 * 6 + 2 * 4), 2 * 100**2
    assert table["copy_share"].tolist() == pytest.approx([moved / copied * (4 + 8) / 2 / 16])
    written(tmp_path, [timed("rate", FORWARD, None, [limits[0], (OURS, 1000, [16.0, 16.0])])], config)
    assert "copy_share" not in rate(tmp_path)
    assert "copy" not in set(rates(tmp_path)["quantity"])


def test_sizes_count_once_and_may_be_missing(tmp_path):
    (record,) = [record for record in made_up_records() if record.topic == "decoding"]
    assert not Results([record, record], CPU).sizes("state_bytes").duplicated(["length", "case"]).any()
    for sample in record.samples:
        sample.state_bytes = None
    assert targets_of(tmp_path, [record]).loc["decoding: size of the state", "verdict"] == "not measured"


def test_crossovers_lie_on_straight_lines_in_log_log():
    lengths = [512, 2048, 8192]
    assert crossover({length: length / 1000 for length in lengths}) == pytest.approx(1000)
    assert crossover({length: 1000 / length for length in lengths}) is None, "ours does not end below the other"
    assert crossover(dict.fromkeys(lengths, 2)) is None, "ours is below from the first"
    assert crossover(dict(zip(lengths, [2, 0.5, 2], strict=True))) == pytest.approx(4096), "the last one counts"


def test_a_position_encoding_is_compared_with_its_own_kernel_without(tmp_path):
    # Everything is twice as slow in the second round; softmax is three times as slow as elu+1.
    seconds = {"softmax none": 3.0, "softmax alibi": 3.6, "elu+1 none": 1.0, "elu+1 rope after": 1.02}
    written(tmp_path, [timed("positions", STEP, 1024, [(name, 1024, [x, 2 * x, x]) for name, x in seconds.items()])])
    assert times(tmp_path)["ratio"].tolist() == pytest.approx([1, 1.2, 1, 1.02])
    rows = shown(tmp_path)
    added = rows[rows["quantity"] == "added"]
    assert added["case"].tolist() == ["softmax alibi", "elu+1 rope after"]
    assert added["value"].tolist() == pytest.approx([0.2, 0.02])
    assert added["text"].tolist() == ["1.200 [1.200, 1.200]", "1.020 [1.020, 1.020]"]


def test_a_crossing_is_told_where_the_rounds_agree(tmp_path):
    """Ours and softmax take equally long at 1,024 tokens."""
    written(tmp_path, made_up_records())
    found = crossings(tmp_path).query("topic == 'training' and quantity == 'time'")
    assert found["value"].tolist() == pytest.approx([1024])
    written(tmp_path, made_up_records(slower=0.94, spread=0.1))  # at 1,024 the rounds disagree
    assert crossings(tmp_path).query("topic == 'module' and quantity == 'time' and case == @after(256)").empty


def test_targets_that_are_missed_say_so(tmp_path):
    met, missed = (targets_of(tmp_path, made_up_records(slower)) for slower in (0.5, 3.0))
    speed = "operation, eq. 19, forward+backward, N = 1,024: speed against performer-pytorch"
    told = ["measured", "verdict"]
    assert tuple(met.loc[speed, told]) == ("100 times [100, 100]", "met")
    assert tuple(missed.loc[speed, told]) == ("16.7 times [16.7, 16.7]", "missed")
    faster = "module, M=256, forward: faster than softmax from N ≤ 1,024"
    assert tuple(met.loc[faster, told]) == (
        "2 times [2, 2] at N = 1,024; faster from N = 512",
        "met",
    )
    assert missed.loc[faster, "verdict"] == "missed"
    assert missed.loc[faster, "measured"].endswith("faster from N = 3,072")


@pytest.mark.parametrize(
    "change", [{"threads": 4}, {"device": "cuda"}, {"precision": "bfloat16"}, {"heads": 4}, {"num_features": 64}]
)
def test_other_settings_than_the_targets_have_none(change, tmp_path):
    found = targets_of(tmp_path, made_up_records(), replace(CPU, **change))
    assert "no target" in set(found["verdict"]) <= {"no target", "not measured"}


def claims(root, records):
    return judged(STUDY, *written(root, records), pd.DataFrame())


@pytest.fixture
def records():
    """Of rounds that are each slower than the one before."""
    return list(made_up_records(spread=1e-3, drift=1.0))


def test_every_claim_reads_the_quantity_that_it_names(tmp_path, records):
    rows = claims(tmp_path, records)
    expected = {
        "linear-time": 1, "quadratic-softmax": 2, "linear-memory": 1, "constant-state": 1, "constant-token": 1,
        "operation-faster": 16, "module-faster": 16, "softmax-rope-cost": 0.02, "favor+-rope-before-cost": 0.02,
        "favor+-rope-after-cost": 0.08, "elu+1-rope-before-cost": 0.02, "elu+1-rope-after-cost": 0.08,
        "alibi-slow": 1.3 / 1.02 - 1, "fixed-decay-cost": 0.05, "gate-cost": 0.05, "selective-cost": 0.05,
    }  # fmt: skip
    assert {key: row.estimate.mean for key, row in rows.items()} == pytest.approx(expected, rel=3e-3, abs=3e-3)
    dear = {"favor+-rope-after-cost", "elu+1-rope-after-cost"}
    verdicts = {key: row.verdict for key, row in rows.items()}
    assert verdicts == {key: "not supported" if key in dear else "supported" for key in expected}
    assert rows["linear-memory"].estimate.n == len(CPU.lengths) - 1
    assert rows["constant-state"].estimate.n == len(CPU.contexts) - 1
    assert rows["quadratic-softmax"].remark == "N = 8,192 and 16,384. the lengths were timed in rounds of their own"
    assert rows["linear-time"].remark == "N = 8,192 and 16,384"


def test_what_was_not_measured_decides_nothing(tmp_path, records):
    rows = claims(tmp_path, [record for record in records if record.topic not in ("positions", "decays")])
    assert {row.claim.family for row in rows.values() if row.verdict == "not run"} == {"positions", "decays"}
    (tmp_path / "measurements.jsonl").unlink()
    assert {row.verdict for row in claims(tmp_path, []).values()} == {"not run"}


def test_what_failed_leaves_its_claims_undecided(tmp_path, records):
    (record,) = [record for record in records if record.topic == "positions"]
    record.samples = [sample for sample in record.samples if sample.case != "softmax alibi"]
    record.failures = [Failure("softmax alibi", 1024, "for the test")]
    rows = claims(tmp_path, records)
    assert rows["alibi-slow"].verdict == "inconclusive"
    assert "softmax alibi, N = 1,024: for the test" in rows["alibi-slow"].remark
    assert rows["softmax-rope-cost"].verdict == "supported"


def test_the_headline_has_the_speed_at_every_length(tmp_path):
    written(tmp_path, made_up_records())
    said = headline_of(STUDY, *opened(tmp_path))
    assert said.startswith("The speed of the attention module (FAVOR+ with RoPE after its map, 256 features) over")
    assert "is 0.50 at 512, 1.00 at 1,024, 2.00 at 2,048, 4.00 at 4,096," in said
    assert "step is 0.25 at 256, 0.50 at 512, 1.00 at 1,024 and 2.00 at 2,048 tokens." in said
    assert "decoding" not in said
