"""The speed study: what is measured and put on record, what the record says, and what is claimed and aimed at."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace

import msgspec
import numpy as np
import pandas as pd
import pytest

from experiments.analysis.claims import claims_of
from experiments.analysis.verdicts import evaluate
from experiments.cli import main
from experiments.studies.speed import benchmark, cases, measure
from experiments.studies.speed.benchmark import in_fresh_process, peak_memory, time_in_turn
from experiments.studies.speed.figures import memory_figure, positions_figure
from experiments.studies.speed.records import (
    Failure,
    MemoryMeasurement,
    Sample,
    TimeMeasurement,
    append_record,
    read_config,
    read_records,
)
from experiments.studies.speed.results import Results, crossover, position_cells
from experiments.studies.speed.study import (
    AFTER,
    BACKWARD,
    BEFORE,
    EQ_19,
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

CPU, SMOKE = settings("cpu", "cpu"), settings("smoke", "cpu")
GEMM_RATE = 3e11
ADDED = {"rope": 0.02, "rope before": 0.02, "rope after": 0.08, "alibi": 0.3}
MEMORY = {"rise": 2, "returned": 1, "method": "made up"}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "speed"
    words = ["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(root), "--plugin", "json"]
    assert main(words) == 0
    return root


def command(root):
    return ["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(root)]


def made_up_seconds(topic, name, length):
    """Ours is linear, softmax quadratic and equal to it at 1,024 tokens, the peer 50 times slower."""
    if name == SGEMM:
        return 2 * length**3 / GEMM_RATE
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


def made_up_records(config=CPU, slower=1.0, spread=0.0, drift=0.0):
    """What a complete run would leave, of five rounds; ``slower`` multiplies our times and memory."""
    records = []
    for plan in measure.planned(config):
        ours = {name: 1.0 if name in (SGEMM, SOFTMAX, SDPA, PERFORMER) else slower for name, _ in plan.cases}
        if isinstance(plan, MemoryMeasurement):
            factor = (100 if plan.case == PERFORMER else ours[plan.case]) * (1 + spread * np.sin(plan.length))
            sizes = {"rise": int(plan.length * 50_000 * factor), "returned": plan.length * 10_000}
            records.append(msgspec.structs.replace(plan, **sizes))
            continue
        samples = []
        for index, (name, length) in enumerate(plan.cases):
            seconds = made_up_seconds(plan.topic, name, length) * ours[name] * np.linspace(1, 1 + drift, 5)
            seconds *= 1 + spread * np.sin(7 * index + length + np.arange(5))
            parameters = 3_220_992 if plan.topic == "training" else None
            state = (4_000_000 if name == AFTER else 8192 * length) if plan.topic == "decoding" else None
            samples.append((name, length, seconds.tolist(), parameters, None if name == PERFORMER else state))
        records.append(timed(plan.topic, plan.direction, plan.length, samples))
    return records


def test_a_smoke_run_leaves_all_that_a_comparison_has(smoke):
    files = {str(path.relative_to(smoke)) for path in smoke.rglob("*") if path.is_file()}
    tables = {f"{name}.csv" for name in "times memory rate targets curves summary".split()}
    assert {"comparison.json", "measurements.jsonl", "report.html", "report.md", *tables} <= files
    stems = "rate operation-time operation-memory module-time training-time training-memory positions decoding".split()
    assert {f"figures/{stem}.{kind}" for stem in stems for kind in ("png", "svg")} <= files
    times = pd.read_csv(smoke / "times.csv")
    assert set(times["topic"]) == {"operation", "module", "training", "positions", "decoding"}
    assert times["low"].le(times["median"]).all()
    assert times["median"].le(times["high"]).all()
    assert (pd.read_csv(smoke / "memory.csv")["rise"] > 0).all()
    assert set(pd.read_csv(smoke / "targets.csv")["verdict"]) == {"not measured", "no target"}, "its sizes are others"
    record = json.loads((smoke / "comparison.json").read_text())
    assert record["config"]["lengths"] == [32, 64]
    assert any(note.startswith("fla is not measured") for note in record["notes"])
    assert [origin["module"] for origin in record["plugins"]] == ["json"]
    assert "The variants" not in (smoke / "report.md").read_text()


def test_a_killed_run_measures_only_what_is_missing_and_a_third_nothing(smoke, tmp_path, capsys):
    root = tmp_path / "killed"
    shutil.copytree(smoke, root)
    lines = (smoke / "measurements.jsonl").read_bytes().splitlines(keepends=True)
    (root / "measurements.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]) + b'{"kind": "ti')
    assert main(command(root)) == 0
    *before, last = [json.loads(line) for line in (root / "measurements.jsonl").read_text().splitlines()]
    assert len(before) == len(lines) - 1
    assert last["topic"] == "decoding"
    assert last["run"] not in {row["run"] for row in before}
    assert "come from more than one run" in (root / "report.md").read_text()
    capsys.readouterr()
    written = (root / "measurements.jsonl").read_bytes()
    assert main(command(root)) == 0
    assert "0 measurements to make" in capsys.readouterr().out
    assert (root / "measurements.jsonl").read_bytes() == written
    assert "come from more than one run" not in (smoke / "report.md").read_text()


def test_tables_and_figures_are_rebuilt_from_the_record_alone(smoke, tmp_path):
    root = tmp_path / smoke.name
    root.mkdir()
    for name in ("comparison.json", "measurements.jsonl"):
        shutil.copy(smoke / name, root)
    assert main(["report", str(root)]) == 0
    for name in ("times.csv", "memory.csv", "rate.csv", "targets.csv", "report.md", "figures/operation-time.svg"):
        assert (root / name).read_bytes() == (smoke / name).read_bytes(), name


def test_another_preset_in_the_same_directory_is_refused(smoke, capsys):
    assert main(["run", "speed", "--preset", "cpu", "--device", "cpu", "--out", str(smoke)]) == 2
    assert "lengths ([32, 64] there" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--data", "stdlib"], ["--variants=softmax-none"], ["--steps", "360"]])
def test_options_about_training_are_refused(tmp_path, capsys, options):
    assert main(["run", "speed", "--out", str(tmp_path / "refused"), *options]) == 2
    output, message = capsys.readouterr()
    assert output == ""
    assert message.startswith(f"error: {options[0].partition('=')[0]} says what is trained")
    assert message.count("\n") == 1
    assert not (tmp_path / "refused").exists()


def test_a_dry_run_lists_the_measurements_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "planned"
    assert main(["run", "speed", "--device", "cpu", "--dry-run", "--out", str(out)]) == 0
    output = capsys.readouterr().out
    assert "time of operation, forward+backward, N = 16,384: linear-rope" in output
    assert "performer-pytorch is left out where it needs more than" in output
    assert not out.exists()


@pytest.mark.slow
def test_what_fails_is_dropped_and_noted_until_it_succeeds(tmp_path, monkeypatch, capsys):
    root = tmp_path / "failing"
    build = cases.build

    def fails_for_softmax_in_a_module(topic, direction, name, length, config):
        if (topic, direction, name) == ("module", FORWARD, SOFTMAX):
            raise AttributeError("for the\ntest")  # any exception
        return build(topic, direction, name, length, config)

    def fails_for_eq_19(function, plan, config):
        if plan.case == EQ_19:
            raise RuntimeError("its process ended")
        return MEMORY

    with monkeypatch.context() as patched:
        patched.setattr(measure, "build", fails_for_softmax_in_a_module)
        patched.setattr(benchmark, "in_fresh_process", fails_for_eq_19)
        assert main(command(root)) == 1
    output, report = capsys.readouterr().out, (root / "report.md").read_text()
    notes = json.loads((root / "comparison.json").read_text())["notes"]
    for sentence in (
        f"failed: time of module, forward, N = 32: {SOFTMAX}: AttributeError: for the test",
        f"failed: memory of operation, forward+backward, N = 32: {EQ_19}: its process ended",
    ):
        assert sentence in output
        assert sentence in notes
        assert sentence in report
    times = pd.read_csv(root / "times.csv")
    measured = set(times[(times["topic"] == "module") & (times["direction"] == FORWARD)]["case"])
    assert {BEFORE, NONE} < measured
    assert SOFTMAX not in measured

    with monkeypatch.context() as patched:
        patched.setattr(benchmark, "in_fresh_process", lambda *arguments: MEMORY)
        assert main(command(root)) == 0
    assert "3 measurements to make" in capsys.readouterr().out, "the failed ones only"
    assert not any(note.startswith("failed") for note in json.loads((root / "comparison.json").read_text())["notes"])
    assert SOFTMAX in set(pd.read_csv(root / "times.csv").query("topic == 'module' and direction == 'forward'")["case"])


def test_the_note_about_a_missing_peer_goes_when_it_is_installed(smoke, tmp_path):
    root = tmp_path / "installed"
    shutil.copytree(smoke, root)
    record = json.loads((root / "comparison.json").read_text())
    stale = "pytorch-fast-transformers is not measured: not installed (for the test)."
    kept = "continued with another command: for the test"
    (root / "comparison.json").write_text(json.dumps(record | {"notes": [stale, kept]}))
    assert main(command(root)) == 0
    assert json.loads((root / "comparison.json").read_text())["notes"] == [kept, *record["notes"]]


def test_the_study_is_listed_without_heavy_libraries():
    code = "import sys; from experiments.studies.speed import study; assert study.STUDY.question; "
    code += "assert not {'torch', 'pandas', 'matplotlib'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


TIME = timed("module", FORWARD, 512, [(OURS, 512, [0.25, 0.5], None, 8), (SOFTMAX, 512, [0.25, 0.5])])
RATE = timed("rate", FORWARD, None, [(OURS, 512, [0.25])])
PLACE = {"topic": "module", "direction": BACKWARD, "length": 512, "cases": ((OURS, 512),)}
ONE = MemoryMeasurement(**PLACE, case=OURS, **MEMORY)


def test_what_is_appended_is_read_again_and_the_later_counts(tmp_path):
    again = msgspec.structs.replace(ONE, rise=3, run="b")
    (tmp_path / "measurements.jsonl").write_bytes(b'{"of a killed run')
    for record in (TIME, RATE, ONE, again):
        append_record(tmp_path, record)
    assert read_records(tmp_path) == [TIME, RATE, again]
    line = json.loads((tmp_path / "measurements.jsonl").read_text().splitlines()[0])
    assert line["samples"][1] == {"case": SOFTMAX, "length": 512, "seconds": [0.25, 0.5]}
    assert not {"failures", "run"} & line.keys(), "what is not so is not said"


@pytest.mark.parametrize(
    ("record", "change", "message"),
    [
        (TIME, {"kind": "space"}, "space"),
        (TIME, {"length": 0}, r"\$\.length"),
        (TIME, {"direction": STEP}, "topic and direction are 'module' and 'step'"),
        (TIME, {"samples": [{"case": OURS, "length": 512, "seconds": [0]}]}, r"\$\.samples\[0\]\.seconds\[0\]"),
        (TIME, {"samples": [{"case": name, "length": 512, "seconds": s} for name, s in (("a", [1]), ("b", [1, 2]))]},
         r"samples\[1\]\.seconds has another number of rounds"),
        (RATE, {"chunk_size": None}, "chunk_size is missing"),
        (ONE, {"returned": -1}, r"\$\.returned"),
        (ONE, {"direction": FORWARD}, "topic and direction are 'module' and 'forward'"),
    ],
)  # fmt: skip
def test_a_wrong_measurement_is_named_with_its_line(tmp_path, record, change, message):
    row = json.dumps(msgspec.to_builtins(record) | change)
    (tmp_path / "measurements.jsonl").write_text(f"{row}\n")
    with pytest.raises(ValueError, match=rf"measurements\.jsonl, line 1 .*{message}.*; remove that line"):
        read_records(tmp_path)


def test_settings_of_another_version_are_read_and_wrong_ones_named():
    assert read_config(make_record(config={"heads": 2, "newer": 1})) == replace(CPU, heads=2)
    with pytest.raises(ValueError, match=r"comparison\.json, config at \$\.lengths\[1\]"):
        read_config(make_record(config={"lengths": [1, 0]}))


def test_tables_do_without_what_failed():
    failures = [Failure(OURS, 512, "for the test")]
    records = [
        timed("operation", FORWARD, 512, [(SDPA, 512, [1.0])], failures=failures),
        timed("rate", FORWARD, None, [], failures=failures),
        MemoryMeasurement(**PLACE | {"topic": "operation"}, case=OURS, failures=failures),
    ]
    results = Results(records, CPU)
    assert results.time_table["ratio"].isna().all()
    assert results.rate_table.empty
    assert results.memory_table.empty
    assert {target.verdict for target in targets(results)} == {"not measured"}
    alone = timed("rate", FORWARD, None, [(SGEMM, CPU.gemm_size, [1.0])])
    assert Results([alone], CPU).rate_table.empty, "the matrix product alone"


def test_sizes_count_once_and_may_be_missing():
    (record,) = [record for record in made_up_records() if record.topic == "decoding"]
    assert not Results([record, record], CPU).fact_table("state_bytes").duplicated(["length", "case"]).any()
    for sample in record.samples:
        sample.state_bytes = None
    judged = {target.what: target.verdict for target in targets(Results([record], CPU))}
    assert judged["decoding: size of the state"] == "not measured"


def test_models_of_another_size_are_not_trained_beside_ours(monkeypatch):
    larger = lambda length, config: cases.language_model(AFTER, length, replace(config, dim=2 * config.dim))  # noqa: E731
    monkeypatch.setattr(cases, "_performer_model", larger)
    with pytest.raises(ValueError, match="more than 1 % in parameters"):
        cases.build("training", STEP, PERFORMER, 32, SMOKE)


def test_crossovers_lie_on_straight_lines_in_log_log():
    lengths = [512, 2048, 8192]
    assert crossover({length: length / 1000 for length in lengths}) == pytest.approx(1000)
    assert crossover({length: 1000 / length for length in lengths}) is None, "ours does not end below the other"
    assert crossover(dict.fromkeys(lengths, 2)) is None, "ours is below from the first"
    assert crossover(dict(zip(lengths, [2, 0.5, 2], strict=True))) == pytest.approx(4096), "the last one counts"


def test_a_position_encoding_is_compared_with_its_own_kernel_without():
    # Everything is twice as slow in the second round; softmax is three times as slow as elu+1.
    seconds = {"softmax none": 3.0, "softmax alibi": 3.6, "elu+1 none": 1.0, "elu+1 rope after": 1.02}
    record = timed("positions", STEP, 1024, [(name, 1024, [x, 2 * x, x]) for name, x in seconds.items()])
    times = Results([record], CPU).time_table
    assert times["ratio"].tolist() == pytest.approx([1, 1.2, 1, 1.02])
    over = position_cells(times)["over none"].tolist()
    assert over == ["-", "1.200 [1.200, 1.200]", "-", "1.020 [1.020, 1.020]"]
    panels = positions_figure(times).axes
    assert [[text.get_text() for text in axes.get_yticklabels()] for axes in panels] == [["alibi"], ["rope after"]]
    assert [list(axes.containers[0][0].get_xdata()) for axes in panels] == [pytest.approx([20]), pytest.approx([2])]


def test_sizes_of_zero_are_drawn_on_an_axis_that_has_a_zero():
    figure = memory_figure(pd.DataFrame({"case": ["linear-rope", "new"], "length": 512, "extra": 0}))
    assert figure.axes[0].get_yscale() == "linear"
    assert len(figure.axes[0].lines) == 2, "a competitor of another version is drawn too"


def judged(config=CPU, **other):
    return {target.what: target for target in targets(Results(made_up_records(**other), config))}


def test_targets_that_are_missed_say_so():
    met, missed = judged(), judged(slower=3.0)
    speed = "operation, forward+backward, N = 1,024: speed against performer-pytorch"
    assert met[speed][2:] == ("50 times [50, 50]", "met")
    assert missed[speed][2:] == ("16.7 times [16.7, 16.7]", "missed")
    faster = "module, M=256, forward: faster than softmax from N ≤ 2,048"
    assert met[faster][2:] == ("2 times [2, 2] at N = 2,048; faster from N = 1,024", "met")
    assert missed[faster].verdict == "missed"
    assert missed[faster].measured.endswith("faster from N = 3,072")


@pytest.mark.parametrize(
    "change", [{"threads": 1}, {"device": "cuda"}, {"precision": "bfloat16"}, {"heads": 4}, {"num_features": 64}]
)
def test_other_settings_than_the_targets_have_none(change):
    verdicts = {target.verdict for target in judged(replace(CPU, **change)).values()}
    assert "no target" in verdicts <= {"no target", "not measured"}


def verdicts_of(root, records):
    for record in records:
        append_record(root, record)
    comparison = make_record(experiment="speed", seeds=[], data=[], config=msgspec.to_builtins(asdict(CPU)))
    return {
        row.claim.key: row
        for row in evaluate(claims_of(STUDY), root, comparison, pd.DataFrame(), reference="speed", command="")
    }


@pytest.fixture
def records():
    """Of rounds that are each slower than the one before."""
    return made_up_records(spread=1e-3, drift=1.0)


def test_every_claim_reads_the_quantity_that_it_names(tmp_path, records):
    rows = verdicts_of(tmp_path, records)
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
    assert rows["linear-memory"].estimate.n == len(CPU.lengths) - 1
    assert rows["constant-state"].estimate.n == len(CPU.contexts) - 1
    assert rows["quadratic-softmax"].remark == "N = 8,192 and 16,384. the lengths were timed in rounds of their own"
    assert rows["linear-time"].remark == "N = 8,192 and 16,384"


def test_what_was_not_measured_decides_nothing(tmp_path, records):
    rows = verdicts_of(tmp_path, [record for record in records if record.topic != "positions"])
    assert {row.claim.family for row in rows.values() if row.verdict == "not run"} == {"positions"}
    (tmp_path / "measurements.jsonl").unlink()
    assert {row.verdict for row in verdicts_of(tmp_path, []).values()} == {"not run"}


def test_what_failed_leaves_its_claims_undecided(tmp_path, records):
    (record,) = [record for record in records if record.topic == "positions"]
    record.samples = [sample for sample in record.samples if sample.case != "softmax alibi"]
    record.failures = [Failure("softmax alibi", 1024, "for the test")]
    rows = verdicts_of(tmp_path, records)
    assert rows["alibi-slow"].verdict == "inconclusive"
    assert "softmax alibi, N = 1,024: for the test" in rows["alibi-slow"].remark
    assert rows["softmax-rope-cost"].verdict == "supported"


def test_competitors_are_timed_in_turn():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    options = {"threads": 1, "sample_seconds": 0.0, "fewest_rounds": 2, "budget": 0.0}
    seconds, failures = time_in_turn(calls, rounds=5, **options)
    assert failures == {}
    assert [len(values) for values in seconds.values()] == [2, 2]
    changes = [a for a, b in zip(order, [*order[1:], None], strict=True) if a != b]
    assert changes == ["a", "b", "a", "b"]


def test_a_competitor_that_raises_leaves_the_others():
    def fails():
        raise KeyError("for the test")

    options = {"threads": 1, "sample_seconds": 0.0, "rounds": 2, "fewest_rounds": 2, "budget": 0.0}
    seconds, failures = time_in_turn({"a": lambda: None, "b": fails}, **options)
    assert (set(seconds), len(seconds["a"])) == ({"a"}, 2)
    assert failures == {"b": "KeyError: 'for the test'"}


def allocate(mebibytes):
    import torch

    rise, _ = peak_memory(lambda: torch.ones(mebibytes, 2**18).sum(), torch.device("cpu"))
    return rise


def fail():
    raise ValueError("for the test")


def die():
    import os

    os.kill(os.getpid(), signal.SIGKILL)


def test_peak_memory_is_that_of_the_call():
    rise = in_fresh_process(allocate, 64)
    assert 64 * 2**20 <= rise < 80 * 2**20, "what the first call loads of the library counts too"


@pytest.mark.parametrize(("function", "reason"), [(fail, "for the test"), (die, "exit status -9")])
def test_a_process_that_fails_says_why(function, reason):
    with pytest.raises(RuntimeError, match=reason):
        in_fresh_process(function)
