"""The command for GPUs: its steps and targets, and rehearsals of it on the CPU."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.gpu.results import MISSED, NOT_MEASURED, REACHED, TARGETS, sections, targets
from experiments.gpu.session import DONE, FAILED, LEFT_OUT, STOPPED, Planned, Session
from experiments.gpu.speeds import OURS, cases, cases_of_peers
from experiments.gpu.step import read
from experiments.gpu.tests import TESTS

COMMAND = Path(__file__).parents[2] / ".ci/gpu"
NEEDS_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
# Writes that it began something and dies; then, when it finds why that is on record, a result.
DIES_ONCE = """\
if grep -q failure "$0"; then echo '{{"step": "dies", "found": 1}}' >> "$0"; exit 0; fi
echo '{{"step": "dies", "case": {{"n": 1}}, "part": "a", "begun": true}}' >> "$0"
kill -9 $$
"""


def summary(results: Path) -> dict[str, Any]:
    return json.loads((results / "gpu.json").read_text())


def run(results: Path, seconds: float, *groups: Sequence[tuple[str, float, str]]) -> Session:
    """A session of shell scripts: names, shares and scripts in which $0 is the file of records."""
    session = Session(results, seconds)
    for group in groups:
        session.run([Planned(name, share, ["sh", "-c", script, str(session.records)]) for name, share, script in group])
    return session


def test_a_step_that_fails_or_is_late_leaves_the_others_results(tmp_path):
    finds = 'echo \'{{"step": "finds", "found": 1}}\' >> "$0"'
    bad = [("fails", 1.0, "exit 3"), ("late", 0.05, "sleep 60")]
    session = run(tmp_path, 20, [("dies", 1.0, DIES_ONCE)], bad, [("finds", 1.0, finds)])
    assert [each["outcome"] for each in session.outcomes] == [DONE, FAILED, STOPPED, DONE]
    found = summary(tmp_path)
    assert found["finds"] == [{"step": "finds", "found": 1}]
    why, result = found["dies"]
    assert (why["case"], why["part"], why["failure"]) == ({"n": 1}, "a", "its process ended with status -9")
    assert result["found"] == 1


def test_what_has_no_time_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.gpu.session.ENDING", 0)
    monkeypatch.setattr("experiments.gpu.session.SHORTEST", 0.5)
    session = run(tmp_path, 1.2, [("late", 1.0, "sleep 60")], [("last", 1.0, "exit")])
    assert [each["outcome"] for each in session.outcomes] == [STOPPED, LEFT_OUT]
    assert summary(tmp_path)["steps"] == session.outcomes


def test_each_target_is_of_one_case_that_is_measured():
    planned = {"speeds": list(cases()), "peers": list(cases_of_peers())}
    for target in TARGETS:
        where = dict(target["where"])
        step = where.pop("step")
        if step == "training":
            continue
        fitting = [(case, names) for case, names in planned[step] if where.items() <= case.key.items()]
        assert len(fitting) == 1, target["what"]
        named = {name for name in target["value"] if name not in ("speedup", "error over", "errors", "output")}
        assert named - {"gradients", "share of", "copy"} <= set(fitting[0][1])


def test_what_was_measured_is_judged():
    (case,) = [case for case, _ in cases() if case[:4] == ("attention", 64, 1024, "elu+1")][1:2]
    common = {"step": "speeds", "case": case.key, "work": {"copy": 4e9, "matmul": 1e9}}
    limits = {"step": "speeds", "case": {"topic": "limits"}, "limits": {"copy": 4e12, "matmul": 1e14}}
    for speedup, verdict, stretch in ((2.0, REACHED, True), (1.4, REACHED, False), (1.2, MISSED, False)):
        record = common | {"ms": {OURS: 2.0, "SDPA": 2.0 * speedup}, "speedup": {"SDPA": speedup}}
        found = sections([limits, {"step": "speeds", "case": case.key, "part": OURS, "begun": True}, record])
        assert found["speeds"][1]["share of"] == {"copy": pytest.approx(0.5), "matmul": pytest.approx(0.005)}
        first, *others = targets(found)
        assert (first["verdict"], first["measured"], first["stretch reached"]) == (verdict, speedup, stretch)
        assert {each["verdict"] for each in others} == {NOT_MEASURED}
    (error,) = [each for each in targets({"speeds": [error_record(2e-3)]}) if each["measured"] == 2e-3]
    assert error["verdict"] == REACHED
    (error,) = [each for each in targets({"speeds": [error_record(4e-3)]}) if each["measured"] == 4e-3]
    assert error["verdict"] == MISSED


def error_record(output: float) -> dict[str, Any]:
    return {"case": {"topic": "errors", "map": "elu+1"}, "errors": {OURS: {"output": output}}}


def start(*words: str, **options: Any) -> subprocess.Popen:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    environment.pop("OUT", None)
    return subprocess.Popen(["bash", COMMAND, *words], env=environment, text=True, **options)


def test_the_tests_that_a_gpu_runs_are_there():
    for name in TESTS:
        file, _, test = name.partition("::")
        assert f"def {test or 'test_'}" in (Path(__file__).parents[2] / file).read_text()


@pytest.mark.slow
def test_without_a_gpu_it_says_so(tmp_path):
    with start(str(tmp_path / "results"), stderr=subprocess.PIPE) as process:
        _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no GPU" in told
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@NEEDS_TRITON
def test_a_rehearsal_goes_on_after_a_kill_and_writes_every_section(tmp_path):
    records = tmp_path / "records.jsonl"
    with start(str(tmp_path), "--rehearse", "--minutes", "6") as process:
        try:
            wait_for(lambda: any(each["step"] == "speeds" and "begun" in each for each in read(records)))
            steps = {each.cmdline()[-4]: each for each in psutil.Process(process.pid).children()}
            steps["speeds"].send_signal(signal.SIGKILL)
            assert process.wait(timeout=360) == 0
        finally:
            process.terminate()
    found = summary(tmp_path)
    assert [each["step"] for each in found["steps"]] == ["proof-0", "tests", "speeds", "peers", "training", "research"]
    assert {each["outcome"] for each in found["steps"]} == {DONE}
    assert {each["proved"] for each in found["proof"]} == {True}
    assert {each["outcome"] for each in found["tests"]} <= {"passed", "skipped"}
    assert any("ended with status -9" in each.get("failure", "") for each in found["speeds"])
    topics = {each["case"]["topic"]: each for each in found["speeds"] if "part" not in each}
    assert set(topics) == {"limits", "attention", "errors", "decoding"}
    assert any("performer-pytorch" in each.get("ms", {}) for each in found["peers"])
    assert len(found["training"][0]["tokens per second"]) == 6
    measured = [each for each in found["targets"] if each["verdict"] != NOT_MEASURED]
    assert {"a training step", "a decoded token"} <= {
        each["target"].split(" of ")[0].split(",")[0] for each in measured
    }
    with tarfile.open(tmp_path / "runs.tar.gz") as archive:
        assert "elu+1-none/seed0/metrics.jsonl" in archive.getnames()
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.slow
def test_the_time_limit_holds(tmp_path):
    begun = time.monotonic()
    with start(str(tmp_path), "--rehearse", "--minutes", "0.15") as process:
        process.wait(timeout=120)
    assert time.monotonic() - begun < 9 + 30  # and what it takes to import PyTorch where others work
    assert {each["outcome"] for each in summary(tmp_path)["steps"][-2:]} <= {STOPPED, LEFT_OUT}


def wait_for(holds: Any) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
