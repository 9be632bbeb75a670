import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.cli import main
from experiments.records.record import read_lines
from experiments.studies.speed import cases as speed_cases
from experiments.studies.speed import study as speed
from experiments.studies.speed.benchmark import in_fresh_process, peak_memory, time_in_turn
from experiments.studies.speed.cases import competitors
from experiments.studies.speed.figures import memory_figure, positions_figure
from experiments.studies.speed.operations import operation_flops
from experiments.studies.speed.records import read_config
from experiments.studies.speed.results import (
    crossover,
    fact_table,
    memory_table,
    rate_table,
    run_table,
    time_table,
)
from experiments.studies.speed.settings import (
    AFTER,
    BACKWARD,
    BEFORE,
    EQ_19,
    FORWARD,
    NONE,
    OURS,
    PERFORMER,
    PRESETS,
    SDPA,
    SGEMM,
    SOFTMAX,
    STEP,
    SpeedConfig,
    after,
)
from experiments.studies.speed.tables import position_cells
from experiments.studies.speed.targets import SHARE_TARGET, targets
from experiments.variants import VARIANTS

CPU = SpeedConfig()
GEMM_RATE = 3e11


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "speed"
    assert main(["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(root)]) == 0
    return root


def made_up_seconds(name, length):
    """Ours is linear, softmax quadratic and equal to it at 1,024 tokens (training: 512), the peer 50 times slower."""
    if name == SGEMM:
        return 2 * length**3 / GEMM_RATE
    if name in (SOFTMAX, SDPA):
        return 1e-5 * length**2 / 1024
    if name == PERFORMER:
        return 50e-5 * length
    return {after(128): 0.8e-5, NONE: 0.98e-5}.get(name, 1e-5) * length


def made_up_records(config=CPU, slower=1.0, spread=0.0):
    """What a complete run would leave; ``slower`` multiplies our times and memory."""
    rows = []
    for measurement in speed.planned(config):
        ours = lambda name: slower if name not in (SGEMM, SOFTMAX, SDPA, PERFORMER) else 1.0  # noqa: E731
        row = measurement._asdict()
        if measurement.kind == "memory":
            ((name, length),) = measurement.cases
            factor = 100 if name == PERFORMER else ours(name)
            rise = int(length * 50_000 * factor)
            row |= {"case": name, "rise": rise, "returned": length * 10_000, "method": "made up"}
        else:
            samples = []
            for name, length in measurement.cases:
                constant = measurement.topic == "decoding" and name == AFTER
                seconds = 2e-3 * slower if constant else made_up_seconds(name, length) * ours(name)
                noise = 1 + spread * np.linspace(-1, 1, 5)
                sample = {"case": name, "length": length, "seconds": list(seconds * noise)}
                if measurement.topic == "decoding" and name != PERFORMER:
                    sample["state_bytes"] = 4_000_000 if name == AFTER else 8192 * length
                if measurement.topic == "training":
                    sample["parameters"] = 3_220_992
                samples.append(sample)
            row |= {"samples": samples, "chunk_size": 64}
        rows.append(json.loads(json.dumps(row)))
    return rows


def test_a_smoke_run_leaves_all_that_a_comparison_has(smoke):
    files = {str(path.relative_to(smoke)) for path in smoke.rglob("*") if path.is_file()}
    tables = {f"{name}.csv" for name in "times memory rate targets curves summary".split()}
    assert {"comparison.json", "measurements.jsonl", "report.html", "report.md", *tables} <= files
    for (
        stem
    ) in "rate operation-time operation-memory module-time training-time training-memory positions decoding".split():
        assert {f"figures/{stem}.png", f"figures/{stem}.svg"} <= files
    times = pd.read_csv(smoke / "times.csv")
    assert set(times["topic"]) == {"operation", "module", "training", "positions", "decoding"}
    assert (times["low"] <= times["median"]).all()
    assert (times["median"] <= times["high"]).all()
    assert (pd.read_csv(smoke / "memory.csv")["rise"] > 0).all()
    record = json.loads((smoke / "comparison.json").read_text())
    assert record["config"]["lengths"] == [32, 64]
    assert any(note.startswith("fla is not measured") for note in record["notes"])
    report = (smoke / "report.md").read_text()
    assert "No run finished" not in report
    assert "The variants" not in report


def test_running_again_measures_nothing(smoke, capsys):
    before = (smoke / "measurements.jsonl").read_bytes()
    assert main(["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(smoke)]) == 0
    assert "0 measurements to make" in capsys.readouterr().out
    assert (smoke / "measurements.jsonl").read_bytes() == before


def test_a_killed_run_measures_only_what_is_missing(smoke, tmp_path, monkeypatch):
    root = tmp_path / "killed"
    shutil.copytree(smoke, root)
    lines = (smoke / "measurements.jsonl").read_bytes().splitlines(keepends=True)
    (root / "measurements.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]) + b'{"kind": "ti')
    made = []
    timed = speed._time
    monkeypatch.setattr(
        speed, "_time", lambda measurement, config: made.append(measurement) or timed(measurement, config)
    )
    assert main(["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(root)]) == 0
    assert [measurement.topic for measurement in made] == ["decoding"]
    rows = [row for row, _ in read_lines(root / "measurements.jsonl", "remove that line")]
    assert len(rows) == len(lines)
    assert rows[-1]["topic"] == "decoding"
    assert len({row["run"] for row in rows}) == 2
    assert "come from more than one run" in (root / "report.md").read_text()
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


@pytest.mark.parametrize(
    "options",
    [["--data", "stdlib"], ["--variants=softmax-none"], ["--seeds", "3"], ["--workers", "1"], ["--steps", "360"]],
)
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
def test_what_fails_is_dropped_and_noted_until_it_succeeds(smoke, tmp_path, monkeypatch, capsys):
    root = tmp_path / "failing"
    command = ["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(root)]
    build = speed_cases.build

    def fails_for_softmax_in_a_module(topic, direction, name, length, config):
        if (topic, direction, name) == ("module", FORWARD, SOFTMAX):
            raise AttributeError("for the\ntest")  # any exception
        return build(topic, direction, name, length, config)

    def fails_for_eq_19(function, topic, direction, name, length, config):
        if name == EQ_19:
            raise RuntimeError("its process ended")
        return MEMORY

    with monkeypatch.context() as patched:
        patched.setattr(speed, "build", fails_for_softmax_in_a_module)
        patched.setattr(speed, "in_fresh_process", fails_for_eq_19)
        assert main(command) == 1
    sentences = [
        f"failed: time of module, forward, N = 32: {SOFTMAX}: AttributeError: for the test",
        f"failed: memory of operation, forward+backward, N = 32: {EQ_19}: its process ended",
    ]
    output = capsys.readouterr().out
    notes = json.loads((root / "comparison.json").read_text())["notes"]
    report = (root / "report.md").read_text()
    for sentence in sentences:
        assert sentence in output
        assert sentence in notes
        assert sentence in report
    times = pd.read_csv(root / "times.csv")
    measured = times[(times["topic"] == "module") & (times["direction"] == FORWARD)]
    assert {BEFORE, NONE} < set(measured["case"])
    assert SOFTMAX not in set(measured["case"])

    with monkeypatch.context() as patched:
        patched.setattr(speed, "in_fresh_process", lambda *arguments: MEMORY)
        assert main(command) == 0
    assert "3 measurements to make" in capsys.readouterr().out, "the failed ones only"
    assert not any(note.startswith("failed") for note in json.loads((root / "comparison.json").read_text())["notes"])
    assert SOFTMAX in set(pd.read_csv(root / "times.csv").query("topic == 'module' and direction == 'forward'")["case"])


def test_the_note_about_a_missing_peer_goes_when_it_is_installed(smoke, tmp_path, monkeypatch):
    root = tmp_path / "installed"
    shutil.copytree(smoke, root)
    record = json.loads((root / "comparison.json").read_text())
    stale = "pytorch-fast-transformers is not measured: not installed (for the test)."
    kept = "continued with another command: for the test"
    (root / "comparison.json").write_text(json.dumps(record | {"notes": [stale, kept]}))
    assert main(["run", "speed", "--preset", "smoke", "--device", "cpu", "--out", str(root)]) == 0
    assert json.loads((root / "comparison.json").read_text())["notes"] == [kept, *record["notes"]]


def test_tables_do_without_what_failed():
    failed = {"samples": [], "failures": [{"case": OURS, "length": 512, "reason": "for the test"}]}
    records = [
        {"kind": "time", "topic": "operation", "direction": FORWARD, "length": 512, "chunk_size": 64} | failed,
        {"kind": "time", "topic": "rate", "direction": FORWARD, "length": None, "chunk_size": 64} | failed,
        {"kind": "memory", "topic": "operation", "direction": BACKWARD, "length": 512, "case": OURS} | failed,
    ]
    records[0]["samples"] = [{"case": SDPA, "length": 512, "seconds": [1.0]}]
    assert time_table(records, CPU)["ratio"].isna().all()
    assert rate_table(records, CPU).empty
    assert memory_table(records).empty
    assert {target.verdict for target in targets(records, CPU)} == {"not measured"}


def test_records_without_a_run_count_as_one():
    rows = [{"topic": "module", "kind": "memory"} | run for run in ({}, {}, {"run": "a"})]
    assert run_table(rows)[["run", "measurements"]].to_numpy().tolist() == [["not recorded", 2], ["a", 1]]


def test_models_of_another_size_are_not_trained_beside_ours(monkeypatch):
    larger = lambda length, config: speed_cases.language_model(AFTER, length, replace(config, dim=2 * config.dim))  # noqa: E731
    monkeypatch.setattr(speed_cases, "_performer_model", larger)
    with pytest.raises(ValueError, match="more than 1 % in parameters"):
        speed_cases.build("training", STEP, PERFORMER, 32, PRESETS["smoke"])


MEMORY = {"rise": 2, "returned": 1, "method": "made up"}


def test_operations_are_those_counted_by_hand():
    # H = 1, N = 8, M = 4, D = 2, C = 4: state 4·8·4·2 = 256, chunks 2·8·4·(4 + 2) = 384
    config = SpeedConfig(heads=1, head_dim=2, num_features=4)
    assert operation_flops(8, config, FORWARD, chunk_size=4, dense=True) == 640
    assert operation_flops(8, config, BACKWARD, chunk_size=4, dense=True) == 3 * 640
    # of the 4·4 pairs of a chunk 10 are causal: 2·(2·10)·6 = 240
    assert operation_flops(8, config, FORWARD, chunk_size=4) == 256 + 240
    # a chunk is not longer than the sequence: 2·2·2·6 = 48
    assert operation_flops(2, config, FORWARD, chunk_size=64, dense=True) == 64 + 48


def test_crossovers_lie_on_straight_lines_in_log_log():
    lengths = [512, 2048, 8192]
    quadratic = [length**2 / 1000 for length in lengths]
    assert crossover(lengths, lengths, quadratic) == pytest.approx(1000)
    assert crossover(lengths, quadratic, lengths) is None, "ours does not end below the other"
    assert crossover(lengths, lengths, [2 * length for length in lengths]) is None, "ours is below from the first"
    assert crossover(lengths, [1, 1, 1], [2, 0.5, 2]) == pytest.approx(4096), "the last one counts"


def test_ratios_are_taken_within_a_round():
    # Both are twice as slow in the second round: the ratio does not move.
    samples = [
        {"case": OURS, "length": 512, "seconds": [1.0, 2.0, 1.0]},
        {"case": SDPA, "length": 512, "seconds": [3.0, 6.0, 3.0]},
    ]
    record = {"kind": "time", "topic": "operation", "direction": FORWARD, "length": 512, "samples": samples}
    row = time_table([record], CPU).set_index("case").loc[SDPA]
    assert (row["ratio_low"], row["ratio"], row["ratio_high"]) == (3, 3, 3)
    assert row["high"] == 4.5


def test_a_position_encoding_is_compared_with_its_own_kernel_without():
    # Everything is twice as slow in the second round; softmax is three times as slow as elu+1.
    seconds = {"softmax none": 3.0, "softmax alibi": 3.6, "elu+1 none": 1.0, "elu+1 rope after": 1.02}
    samples = [{"case": name, "length": 1024, "seconds": [x, 2 * x, x]} for name, x in seconds.items()]
    record = {"kind": "time", "topic": "positions", "direction": STEP, "length": 1024, "samples": samples}
    times = time_table([record], CPU)
    assert times.set_index("case")["ratio"].to_dict() == pytest.approx(
        {"softmax none": 1, "softmax alibi": 1.2, "elu+1 none": 1, "elu+1 rope after": 1.02}
    )
    runs = position_cells(times).to_dict("records")
    assert [row["over none"] for row in runs] == ["-", "1.200 [1.200, 1.200]", "-", "1.020 [1.020, 1.020]"]
    softmax, elu = positions_figure(times).axes
    assert [text.get_text() for text in softmax.get_yticklabels()] == ["alibi"]
    assert list(softmax.containers[0][0].get_xdata()) == pytest.approx([20])
    assert list(elu.containers[0][0].get_xdata()) == pytest.approx([2])


def test_every_position_encoding_that_a_kernel_can_have_is_measured():
    variants = {name.replace("softmax-rope", "softmax-rope-before") for name in VARIANTS}
    known = {variant for variant in variants if variant.startswith(("softmax-", "favor+-", "elu+1-"))}
    names = competitors("positions", 1024, CPU)
    spelled = {name.replace("softmax rope", "softmax rope before").replace(" ", "-") for name in names}
    assert spelled == known


def test_a_model_is_built_with_the_positions_of_its_name():
    config = PRESETS["smoke"]
    sizes = {
        name: speed_cases.build("positions", STEP, name, 32, config).facts["parameters"]
        for name in competitors("positions", 32, config)
    }
    table = 32 * config.dim
    smallest = min(sizes.values())
    assert {name for name, size in sizes.items() if size == smallest + table} == {
        "softmax learned", "favor+ learned", "elu+1 learned",
    }  # fmt: skip
    assert set(sizes.values()) == {smallest, smallest + table}


def test_share_of_sgemm_and_cost_of_a_token():
    records = [row for row in made_up_records() if row["topic"] == "rate" and row["direction"] == BACKWARD]
    rate = rate_table(records, CPU).set_index("length")
    expected = operation_flops(1024, CPU, BACKWARD, 64) / (1e-5 * 1024) / GEMM_RATE
    assert rate.loc[1024, "causal_share"] == pytest.approx(expected)
    dense = operation_flops(1024, CPU, BACKWARD, 64, dense=True) / (1e-5 * 1024) / GEMM_RATE
    assert rate.loc[1024, "dense_share"] == pytest.approx(dense)
    assert rate["cost"].tolist() == pytest.approx([1.0] * 6)


def test_extra_memory_is_without_what_has_to_be_returned():
    record = {"kind": "memory", "topic": "operation", "direction": BACKWARD, "length": 512, "case": OURS}
    table = memory_table([record | {"rise": 500, "returned": 200, "method": "made up"}])
    assert table["extra"].tolist() == [300]


def test_targets_are_judged_by_the_medians():
    judged = {target.what: target for target in targets(made_up_records(spread=0.02), CPU)}
    verdicts = [target.verdict for target in judged.values()]
    without_target = [what for what, target in judged.items() if target.verdict == "no target"]
    assert "operation, forward+backward, N = 1,024: speed against softmax (SDPA)" in without_target
    assert set(verdicts) <= {"met", "missed", "no target"}
    assert len(judged) - len(without_target) == 19
    speedup = judged["operation, forward+backward, N = 1,024: speed against performer-pytorch"]
    assert (speedup.measured, speedup.verdict) == ("50 times [50, 50]", "met")
    assert judged["training step, N = 1,024: what rope after the map adds"].measured == "+2.0% [+2.0%, +2.0%]"
    assert judged["decoding: size of the state"] == (
        "decoding: size of the state", "constant", "3,906 KiB", "met",
    )  # fmt: skip
    faster = judged["module, M=256, forward: faster than softmax from N ≤ 2,048"]
    assert faster.verdict == "met"
    assert faster.measured == "2 times [2, 2] at N = 2,048; faster from N = 1,024"
    memory = judged["operation, forward+backward, N = 1,024: extra memory against performer-pytorch"]
    assert memory.verdict == "met"
    assert memory.measured.endswith("1/124.8")
    eq_19 = {what: target.verdict for what, target in judged.items() if "eq. 19" in what}
    assert list(eq_19.values()) == ["met", "met"]


def test_targets_that_are_missed_say_so():
    judged = {target.what: target for target in targets(made_up_records(slower=3.0), CPU)}
    speedup = judged["operation, forward+backward, N = 1,024: speed against performer-pytorch"]
    assert (speedup.measured, speedup.verdict) == ("16.7 times [16.7, 16.7]", "missed")
    faster = judged["module, M=256, forward: faster than softmax from N ≤ 2,048"]
    assert faster.verdict == "missed"
    assert faster.measured.endswith("faster from N = 3,072")
    share = judged["operation, forward+backward: smallest share of the sgemm rate, N = 512 to 16,384"]
    assert share.verdict == "missed"


def test_the_share_is_judged_by_the_fewest_operations():
    what = "operation, forward+backward: smallest share of the sgemm rate, N = 512 to 16,384"
    shares = rate_table(made_up_records(), CPU).query("direction == 'forward+backward'")
    between = SHARE_TARGET / ((shares["causal_share"].min() + shares["dense_share"].min()) / 2)
    # so that the strict count is just below the target and the dense one above
    judged = {target.what: target for target in targets(made_up_records(slower=1 / between), CPU)}
    assert judged[what].verdict == "missed"
    assert "counting whole chunks" in judged[what].measured


def test_targets_outside_the_sizes_of_a_run_are_not_measured(smoke):
    verdicts = set(pd.read_csv(smoke / "targets.csv")["verdict"])
    assert verdicts == {"not measured", "no target"}


@pytest.mark.parametrize(
    "change", [{"threads": 1}, {"device": "cuda"}, {"precision": "bfloat16"}, {"heads": 4}, {"num_features": 64}]
)
def test_other_settings_than_the_targets_have_none(change):
    records = made_up_records(spread=0.02)
    verdicts = {target.verdict for target in targets(records, replace(CPU, **change))}
    assert verdicts <= {"no target", "not measured"}
    assert "no target" in verdicts


def test_the_peer_is_left_out_where_it_needs_too_much_memory():
    assert PERFORMER in competitors("operation", 1024, CPU)
    assert PERFORMER not in competitors("operation", 16384, CPU)


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


def test_tables_do_without_sizes_that_were_not_recorded():
    (record,) = [row for row in made_up_records() if row["topic"] == "decoding"]
    for sample in record["samples"]:
        sample.pop("state_bytes", None)
    judged = {target.what: target.verdict for target in targets([record], CPU)}
    assert judged["decoding: size of the state"] == "not measured"
    alone = [row for row in made_up_records() if row["topic"] == "rate"]
    for row in alone:
        row["samples"] = row["samples"][:1]
    assert rate_table(alone, CPU).empty, "the matrix product alone"


def test_a_size_that_was_recorded_again_counts_once():
    rows = [row for row in made_up_records() if row["topic"] == "decoding"] * 2
    facts = fact_table(rows, "state_bytes")
    assert not facts.duplicated(["length", "case"]).any()


def test_sizes_of_zero_are_drawn_on_an_axis_that_has_a_zero():
    memory = pd.DataFrame({"case": ["linear-rope", "new"], "length": 512, "extra": 0})
    figure = memory_figure(memory)
    assert figure.axes[0].get_yscale() == "linear"
    assert len(figure.axes[0].lines) == 2, "a competitor of another version is drawn too"


def test_settings_of_another_version_are_read_and_wrong_ones_named():
    assert read_config({"config": {"heads": 2, "newer": 1}}) == SpeedConfig(heads=2)
    with pytest.raises(ValueError, match=r"comparison\.json: \$\.config\.lengths\[1\] is 0, expected `int` >= 1"):
        read_config({"config": {"lengths": [1, 0]}})
