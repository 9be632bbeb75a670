"""The speed study: what is measured, how, and how it is put on record."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from experiments.cli import main
from experiments.studies.speed import benchmark, cases, measure
from experiments.studies.speed.benchmark import in_fresh_process, peak_memory, time_in_turn
from experiments.studies.speed.records import Measurement, Sample, append_record, read_records
from experiments.studies.speed.study import (
    AFTER,
    BEFORE,
    COPY,
    EQ_19,
    FORWARD,
    NONE,
    OURS,
    PERFORMER,
    SGEMM,
    SOFTMAX,
    STEP,
    SpeedConfig,
    settings,
)

MEMORY = {"rise": 2, "returned": 1, "method": "made up"}
RECORD = "measurements.jsonl"
SPEED = Path(__file__).parents[3] / "results/reference/speed"


def run(root, *options, preset="smoke"):
    return main(["run", "speed", "--preset", preset, "--device", "cpu", "--out", str(root), *options])


def comparison_of(root):
    return json.loads((root / "comparison.json").read_text())


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "speed"
    assert run(root, "--plugin", "json") == 0
    return root


@pytest.mark.slow
def test_a_smoke_run_leaves_all_that_a_comparison_has(smoke):
    files = {str(path.relative_to(smoke)) for path in smoke.rglob("*") if path.is_file()}
    tables = {f"{name}.csv" for name in "times memory rate targets curves summary".split()}
    assert {"comparison.json", RECORD, "report.html", "report.md", *tables} <= files
    times_and_memory = "operation-time operation-memory mapped-time module-time training-time training-memory"
    stems = ["rate", *times_and_memory.split(), "token-cost", "positions", "decays", "decoding-time", "decoding-state"]
    assert {f"figures/{stem}.{kind}" for stem in stems for kind in ("png", "svg")} <= files
    times = pd.read_csv(smoke / "times.csv")
    assert set(times["topic"]) == {"operation", "mapped", "module", "training", "positions", "decays", "decoding"}
    assert times["low"].le(times["median"]).all()
    assert times["median"].le(times["high"]).all()
    assert (pd.read_csv(smoke / "memory.csv")["rise"] > 0).all()
    assert set(pd.read_csv(smoke / "targets.csv")["verdict"]) == {"not measured", "no target"}, "its sizes are others"
    comparison = comparison_of(smoke)
    assert comparison["config"]["lengths"] == [32, 64]
    assert any(note.startswith("fla is not measured") for note in comparison["notes"])
    assert [origin["module"] for origin in comparison["plugins"]] == ["json"]
    assert "The variants" not in (smoke / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.full
def test_a_killed_run_measures_only_what_is_missing_and_a_third_nothing(smoke, tmp_path, capsys):
    """The notes are those of now: a peer that is installed meanwhile is no longer missing."""
    root = tmp_path / "killed"
    shutil.copytree(smoke, root)
    lines = (smoke / RECORD).read_bytes().splitlines(keepends=True)
    (root / RECORD).write_bytes(b"".join(lines[:2] + lines[3:]) + b'{"kind": "ti')
    comparison = comparison_of(root)
    stale, kept = (
        "pytorch-fast-transformers is not measured: for the test.",
        "continued with another machine: for the test",
    )
    (root / "comparison.json").write_text(json.dumps(comparison | {"notes": [stale, kept]}))
    assert run(root) == 0
    assert comparison_of(root)["notes"] == [kept, *comparison["notes"]]
    *before, last = [json.loads(line) for line in (root / RECORD).read_text().splitlines()]
    assert len(before) == len(lines) - 1
    assert last["topic"] == "decoding"
    assert last["run"] not in {row["run"] for row in before}
    assert "come from more than one run" in (root / "report.md").read_text()
    capsys.readouterr()
    written = (root / RECORD).read_bytes()
    assert run(root) == 0
    assert "0 measurements to make" in capsys.readouterr().out
    assert (root / RECORD).read_bytes() == written
    assert "come from more than one run" not in (smoke / "report.md").read_text()


def test_settings_that_are_not_set_are_those_on_record(tmp_path, capsys):
    shutil.copytree(SPEED.with_name("speed-decoding"), tmp_path / "speed")
    assert run(tmp_path / "speed", "--dry-run", preset="decoding") == 0
    assert "time of decoding" not in capsys.readouterr().out  # all of it is on record
    assert run(tmp_path / "speed", "--dry-run") == 2
    assert "holds a comparison that differs in lengths (" in capsys.readouterr().err


def test_a_dry_run_lists_the_measurements_and_writes_nothing(tmp_path, capsys):
    assert run(tmp_path / "planned", "--dry-run", preset="one-thread") == 0
    output = capsys.readouterr().out
    assert "time of operation, forward+backward, N = 16,384: linear-rope" in output
    assert "performer-pytorch is left out where it needs more than" in output
    assert not (tmp_path / "planned").exists()


@pytest.mark.slow
@pytest.mark.full
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

    def timed_in_modules():
        times = pd.read_csv(root / "times.csv")
        return set(times[(times["topic"] == "module") & (times["direction"] == FORWARD)]["case"])

    with monkeypatch.context() as patched:
        patched.setattr(measure, "build", fails_for_softmax_in_a_module)
        patched.setattr(benchmark, "in_fresh_process", fails_for_eq_19)
        assert run(root) == 1
    output, report = capsys.readouterr().out, (root / "report.md").read_text()
    for sentence in (
        f"failed: time of module, forward, N = 32: {SOFTMAX}: AttributeError: for the test",
        f"failed: memory of operation, forward+backward, N = 32: {EQ_19}: its process ended",
    ):
        assert sentence in output
        assert sentence in comparison_of(root)["notes"]
        assert sentence in report
    assert {BEFORE, NONE} < timed_in_modules()
    assert SOFTMAX not in timed_in_modules()

    with monkeypatch.context() as patched:
        patched.setattr(benchmark, "in_fresh_process", lambda *arguments: MEMORY)
        assert run(root) == 0
    assert "3 measurements to make" in capsys.readouterr().out, "the failed ones only"
    assert not any(note.startswith("failed") for note in comparison_of(root)["notes"])
    assert SOFTMAX in timed_in_modules()


PLACE = {"topic": "module", "length": 512, "cases": ((OURS, 512),)}
SAMPLES = [Sample(OURS, 512, [0.25, 0.5], state_bytes=8), Sample(SOFTMAX, 512, [0.25, 0.5])]
TIME = Measurement(kind="time", **PLACE, direction=FORWARD, samples=SAMPLES)
RATE = msgspec.structs.replace(TIME, topic="rate", length=None, chunk_size=64)
ONE = Measurement(kind="memory", **PLACE, direction="forward+backward", case=OURS, **MEMORY)


def test_what_is_appended_is_read_again_and_the_later_counts(tmp_path):
    again = msgspec.structs.replace(ONE, rise=3, run="b")
    path = tmp_path / RECORD
    path.write_bytes(b'{"of a killed run')
    for record in (TIME, RATE):
        append_record(tmp_path, record)
    for record in (ONE, again):
        append_record(tmp_path, record)
    assert read_records(tmp_path) == [TIME, RATE, again]
    line = json.loads(path.read_text().splitlines()[0])
    assert line["samples"][1] == {"case": SOFTMAX, "length": 512, "seconds": [0.25, 0.5]}
    assert not {"failures", "run"} & line.keys(), "what is not so is not said"


@pytest.mark.parametrize(
    ("record", "change", "message"),
    [
        (TIME, {"topic": "rats"}, "topic and direction are 'rats'"),
        (RATE, {"chunk_size": None}, "chunk_size is missing"),
        (TIME, {"samples": []}, "samples are missing"),
        (ONE, {"length": None}, "case or length is missing"),
        (TIME, {"samples": [{"case": OURS, "length": 512, "seconds": [1] * n} for n in (1, 2)]}, "number of rounds"),
        (TIME, {"samples": [{"case": OURS, "length": 512, "seconds": [0]}]}, r"\$\.samples\[0\]\.seconds\[0\]"),
    ],
)  # fmt: skip
def test_a_wrong_measurement_is_named_with_its_line(tmp_path, record, change, message):
    row = json.dumps(msgspec.to_builtins(record) | change)
    (tmp_path / RECORD).write_text(f"{row}\n")
    with pytest.raises(ValueError, match=rf"measurements\.jsonl, line 1 .*{message}.*; remove that line"):
        read_records(tmp_path)


def test_models_of_another_size_are_not_trained_beside_ours(monkeypatch):
    larger = lambda length, config: cases.language_model(AFTER, length, replace(config, dim=2 * config.dim))  # noqa: E731
    monkeypatch.setattr(cases, "_performer_model", larger)
    with pytest.raises(ValueError, match="more than 1 % in parameters"):
        cases.build("training", STEP, PERFORMER, 32, settings("smoke", "cpu"))


@pytest.mark.parametrize(("topic", "names"), [
    ("module", [SOFTMAX]),
    ("positions", ["softmax rope", "softmax alibi"]),
    ("decays", [SOFTMAX, f"{SOFTMAX}@decay=gate"]),
])  # fmt: skip
def test_softmax_attention_is_held_to_flash_attention_where_it_adds_no_bias(monkeypatch, topic, names):
    """FlashAttention takes none on a GPU; what is asked for is the same without one."""
    asked, attend = set(), F.scaled_dot_product_attention

    def recorded(*tensors, attn_mask=None, **options):
        cuda = torch.backends.cuda
        enabled = (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled())
        asked.add((attn_mask is None, enabled))
        return attend(*tensors, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    monkeypatch.setattr(SpeedConfig, "takes_flash_attention", True)
    config, direction = settings("smoke", "cpu"), FORWARD if topic == "module" else STEP
    for name in names:
        cases.build(topic, direction, name, 32, config).run()
    flash_alone, any_backend = (True, False, False), (True, True, True)
    is_biased = topic in ("positions", "decays")
    assert asked == {(True, flash_alone)} | ({(False, any_backend)} if is_biased else set())


def test_a_copy_is_timed_beside_the_matrix_product_on_a_gpu_alone():
    limits = {}
    for device in ("cpu", "cuda"):
        plans = [plan for plan in measure.planned(settings("gpu", device)) if plan.topic == "rate"]
        limits[device] = [{name for name, _ in plan.cases} for plan in plans]
    assert limits == {"cpu": [{SGEMM, OURS}] * 2, "cuda": [{SGEMM, COPY, OURS}] * 2}
    copied = cases.build("rate", FORWARD, COPY, 64, settings("smoke", "cpu")).run()
    assert copied.shape == (64, 64)


def fail():
    raise ValueError("for the test")


def test_competitors_are_timed_in_turn_and_one_that_raises_leaves_the_others():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"} | {"c": fail}
    seconds, failures = time_in_turn(calls, threads=1, sample_seconds=0.0, rounds=5, fewest_rounds=2, budget=0.0)
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2}
    assert failures == {"c": "ValueError: for the test"}
    assert [a for a, b in zip(order, [*order[1:], None], strict=True) if a != b] == ["a", "b", "a", "b"]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_peak_memory_is_that_of_the_call():
    for mebibytes in (1, 64, 128):  # the first call loads what the library needs
        rise, _ = peak_memory(lambda: torch.ones(mebibytes, 2**18).sum(), torch.device("cpu"))  # noqa: B023
        assert mebibytes == 1 or abs(rise / 2**20 - mebibytes) < 4


@pytest.mark.slow
def test_a_process_of_its_own_gives_what_it_found_or_says_why_not():
    assert in_fresh_process(abs, -3) == 3
    for function, reason in ((fail, "ValueError: for the test"), (die, "terminated abruptly")):
        with pytest.raises(RuntimeError, match=reason):
            in_fresh_process(function)
