"""What befalls one run is told, and the others finish; the next run of the command does what is missing."""

import hashlib
import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file

FIRST, SECOND, THIRD = "softmax-rope", "favor+-rope-after", "elu+1-rope-after"


@pytest.fixture
def check_recovery(undisturbed, counts):
    """Checks a comparison that ended with the second variant failed, and the next run of its command."""

    def check(disturbed, reason):
        assert disturbed.process.returncode == 1, disturbed.output
        assert "Traceback" not in disturbed.output
        assert disturbed.status(SECOND).state == "failed"
        assert reason in disturbed.status(SECOND).reason
        assert reason in disturbed.output
        for name in ("report.md", "report.html"):
            report = " ".join((disturbed.out / name).read_text().split())
            assert "1 of 1 failed" in report
            assert reason in report
        before = {}
        for variant in (FIRST, THIRD):
            assert disturbed.status(variant).state == "done"
            before[variant] = (disturbed.directory(variant) / "metrics.jsonl").read_bytes()
        assert disturbed.start().wait() == 0, disturbed.output
        assert "2 of 3 runs are done already" in disturbed.output
        assert {variant: (disturbed.directory(variant) / "metrics.jsonl").read_bytes() for variant in before} == before
        assert disturbed.results() == undisturbed
        counts["faults of one run survived"] += 1

    return check


def wait_for_the_second(comparison):
    assert comparison.wait_until(lambda: comparison.rows(SECOND) > 10), comparison.output


def killed_in_the_second(comparison):
    """The comparison, all of its processes killed while its second variant trained."""
    wait_for_the_second(comparison.start())
    comparison.signal_all(signal.SIGKILL)
    comparison.process.wait()
    return comparison


def test_a_worker_killed_for_memory(comparison, check_recovery):
    disturbed = comparison("--workers", "1").start()
    wait_for_the_second(disturbed)
    (worker,) = disturbed.workers()
    worker.kill()
    disturbed.wait()
    check_recovery(disturbed, "killed (SIGKILL), as the system does when memory runs out")


def test_a_worker_that_hangs(comparison, check_recovery):
    disturbed = comparison("--workers", "1", "--run-timeout", "15").start()
    wait_for_the_second(disturbed)
    (worker,) = disturbed.workers()
    worker.suspend()
    disturbed.wait()
    check_recovery(disturbed, "no sign of life for 15 s after step")


@pytest.mark.full
def test_a_loss_that_is_not_a_number(comparison, check_recovery):
    disturbed = killed_in_the_second(comparison("--workers", "1"))
    newest = max((disturbed.directory(SECOND) / "checkpoint").glob("step*"))
    kept = (newest / "model.safetensors").read_bytes(), (newest / "manifest.json").read_bytes()
    weights = load_file(newest / "model.safetensors")
    weights["embedding.tokens.weight"][:] = torch.nan
    save_file(weights, newest / "model.safetensors")
    manifest = json.loads(kept[1])
    manifest["sha256"]["model.safetensors"] = hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()
    (newest / "manifest.json").write_text(json.dumps(manifest))
    disturbed.start().wait()
    (newest / "model.safetensors").write_bytes(kept[0])
    (newest / "manifest.json").write_bytes(kept[1])
    check_recovery(disturbed, "nan")


@pytest.mark.full
def test_an_exception_in_one_variant(comparison, check_recovery):
    disturbed = killed_in_the_second(comparison("--workers", "1"))
    metrics = disturbed.directory(SECOND) / "metrics.jsonl"
    kept = metrics.read_bytes()
    metrics.write_bytes(b"not a record\n" + kept)
    disturbed.start().wait()
    assert "Traceback" in (disturbed.directory(SECOND) / "log.txt").read_text()
    metrics.write_bytes(kept)
    check_recovery(disturbed, "metrics.jsonl, line 1")


@pytest.mark.full
def test_a_directory_made_read_only(comparison, check_recovery):
    disturbed = comparison("--workers", "1").start(as_root=False)
    wait_for_the_second(disturbed)
    directories = [disturbed.directory(SECOND), disturbed.directory(SECOND) / "checkpoint"]
    for directory in directories:
        directory.chmod(0o555)
    disturbed.wait()
    for directory in directories:
        directory.chmod(0o755)
    assert disturbed.status(SECOND).state == "running", "its status could not be written"
    # What the report showed came from comparison.json; now the status is set as if it had been written.
    (unrecorded,) = json.loads((disturbed.out / "comparison.json").read_text())["unrecorded"]
    assert unrecorded["variant"] == SECOND
    (disturbed.directory(SECOND) / "status.json").write_text(
        json.dumps({"state": "failed", "reason": unrecorded["reason"], "notes": []})
    )
    check_recovery(disturbed, "Permission denied")


@pytest.mark.full
def test_all_of_a_comparison_made_read_only_is_one_line(comparison, undisturbed, counts):
    disturbed = comparison("--workers", "1").start(as_root=False)
    wait_for_the_second(disturbed)
    directories = [path for path in [disturbed.out, *disturbed.out.rglob("*")] if path.is_dir()]
    for directory in directories:
        directory.chmod(0o555)
    assert disturbed.wait() == 1
    for directory in directories:
        directory.chmod(0o755)
    assert "Traceback" not in disturbed.output
    (error,) = [line for line in disturbed.output.splitlines() if line.startswith("error: ")]
    assert "Permission denied" in error
    assert "is kept, and the same command goes on from it" in error
    assert disturbed.start().wait() == 0, disturbed.output
    assert disturbed.results() == undisturbed
    counts["read-only comparisons survived"] += 1


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(comparison, undisturbed):
    disturbed = killed_in_the_second(comparison("--workers", "1"))
    _, newest = sorted((disturbed.directory(SECOND) / "checkpoint").glob("step*"))
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert disturbed.start().wait() == 0
    assert disturbed.results() == undisturbed
    assert f"checkpoint {newest.name} is damaged and was passed over" in (disturbed.out / "report.md").read_text()


@pytest.mark.full
def test_where_every_checkpoint_is_damaged_training_begins_again_and_says_so(comparison, undisturbed):
    disturbed = killed_in_the_second(comparison("--workers", "1"))
    for path in (disturbed.directory(SECOND) / "checkpoint").glob("step*"):
        (path / "optimizer.pt").write_bytes(b"")
    assert disturbed.start().wait() == 0
    assert disturbed.results() == undisturbed
    said = "no checkpoint is left to go on from, so training began again at step 0"
    assert said in (disturbed.out / "report.md").read_text()


def test_two_at_once(comparison, undisturbed):
    first = comparison("--workers", "1").start()
    assert first.wait_until(lambda: first.all_rows() > 3)
    second = comparison("--workers", "1", out=first.out).start()
    assert second.wait() == 2
    assert f"is being written by process {first.process.pid} on {os.uname().nodename}" in second.error
    first.signal_all(signal.SIGKILL)
    first.process.wait()
    third = comparison("--workers", "1", out=first.out).start()
    assert third.wait() == 0, third.output
    assert f"process {first.process.pid} on {os.uname().nodename} was writing here and did not end" in third.output
    assert third.results() == undisturbed
