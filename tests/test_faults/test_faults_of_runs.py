"""What befalls one run is told, and the others finish; the next run of the command does what is missing."""

import contextlib
import hashlib
import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

FIRST, SECOND, THIRD = "softmax-rope", "favor+-rope-after", "elu+1-rope-after"


@pytest.fixture
def check_recovery(undisturbed):
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
        assert [disturbed.status(variant).state for variant in (FIRST, THIRD)] == ["done", "done"]
        before = {variant: disturbed.metrics(variant).read_bytes() for variant in (FIRST, THIRD)}
        assert disturbed.finish() == undisturbed
        assert "2 of 3 runs are done already" in disturbed.output
        assert {variant: disturbed.metrics(variant).read_bytes() for variant in before} == before

    return check


def wait_for_the_second(comparison):
    assert comparison.wait_until(lambda: comparison.rows(SECOND) > 10), comparison.output


def killed_in_the_second(comparison):
    """The comparison, all of its processes killed while its second variant trained."""
    wait_for_the_second(comparison.start())
    comparison.kill()
    return comparison


@contextlib.contextmanager
def read_only(directories):
    for directory in directories:
        directory.chmod(0o555)
    yield
    for directory in directories:
        directory.chmod(0o755)


@pytest.mark.full
def test_a_loss_that_is_not_a_number(comparison, check_recovery):
    disturbed = killed_in_the_second(comparison("--workers", "1"))
    files = [disturbed.checkpoints(SECOND)[-1] / name for name in ("model.safetensors", "manifest.json")]
    kept = [path.read_bytes() for path in files]
    weights = load_file(files[0])
    weights["embedding.tokens.weight"][:] = torch.nan
    save_file(weights, files[0])
    manifest = json.loads(kept[1])
    manifest["sha256"]["model.safetensors"] = hashlib.sha256(files[0].read_bytes()).hexdigest()
    files[1].write_text(json.dumps(manifest))
    disturbed.start().wait()
    for path, content in zip(files, kept, strict=True):
        path.write_bytes(content)
    check_recovery(disturbed, "nan")


@pytest.mark.full
def test_a_directory_made_read_only(comparison, undisturbed):
    disturbed = comparison("--workers", "1").start(as_root=False)
    wait_for_the_second(disturbed)
    directories = [disturbed.directory(SECOND), disturbed.directory(SECOND) / "checkpoint"]
    for directory in directories:
        directory.chmod(0o555)
    assert disturbed.wait() == 1, disturbed.output
    for directory in directories:
        directory.chmod(0o755)
    assert "Traceback" not in disturbed.output
    assert f"failed: {SECOND} seed 0: how it ended could not be recorded: " in disturbed.output
    assert "Permission denied" in disturbed.output
    assert disturbed.finish() == undisturbed
    assert "2 of 3 runs are done already" in disturbed.output


NONE_IS_LEFT = "no checkpoint is left to go on from, so training began again at step 0"


@pytest.mark.full
@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (slice(-1, None), "checkpoint {} is damaged and was passed over"),
        (slice(None), NONE_IS_LEFT),
    ],
)
def test_damaged_checkpoints_are_reported_and_what_is_whole_is_used(comparison, undisturbed, damaged, said):
    disturbed = killed_in_the_second(comparison("--workers", "1"))
    checkpoints = disturbed.checkpoints(SECOND)[damaged]
    for path in checkpoints:
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    assert disturbed.finish() == undisturbed
    assert said.format(checkpoints[-1].name) in (disturbed.out / "report.md").read_text()


@pytest.mark.full
def test_two_at_once(comparison, undisturbed):
    first = comparison("--workers", "1").start()
    holder = f"process {first.process.pid} on {os.uname().nodename}"
    assert first.wait_until(lambda: first.all_rows() > 3)
    second = comparison("--workers", "1", out=first.out).start()
    assert second.wait() == 2
    assert f"is being written by {holder}" in second.error
    first.kill()
    third = comparison("--workers", "1", out=first.out)
    assert third.finish() == undisturbed
    assert f"{holder} was writing here and did not end" in third.output


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MiB, and a file in it that takes what others leave."""
    point = tmp_path / "small disk"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(point)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this process may not mount a file system: {mounted.stderr.strip()}")
    yield point
    subprocess.run(["umount", "--lazy", str(point)], check=True)


def fill(disk):
    """Take every byte that is left."""
    with open(disk / "filler", "ab", buffering=0) as filler:
        for size in (2**20, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(b"\0" * size)
    with pytest.raises(OSError, match="No space left"), open(disk / "probe", "wb", buffering=0) as probe:
        probe.write(b"\0")
    os.unlink(disk / "probe")


@pytest.mark.full
def test_a_disk_that_fills_while_a_run_trains(comparison, small_disk, undisturbed):
    disturbed = comparison("--workers", "1", out=small_disk / "comparison").start()
    wait_for_the_second(disturbed)
    fill(small_disk)
    assert disturbed.wait() == 1, disturbed.output
    assert "Traceback" not in disturbed.output
    assert f"{SECOND} seed 0: failed (" in disturbed.output
    assert "No space left on device" in disturbed.output
    assert "is kept, and the same command goes on from it" in disturbed.output
    (small_disk / "filler").unlink()
    assert disturbed.finish() == undisturbed
    assert "1 of 3 runs are done already" in disturbed.output
    assert disturbed.leftovers() == []


def test_a_disk_that_is_full_from_the_start_is_one_line(comparison, small_disk):
    fill(small_disk)
    refused = comparison(out=small_disk / "comparison").start()
    assert refused.wait() == 2
    assert refused.error.startswith("error: --out ")
    assert "cannot be written (No space left on device); make room, or give another --out" in refused.error
