"""What befalls one run is told, and the others finish; the next run of the command does what is missing."""

import contextlib
import os
import subprocess

import pytest

SECOND = "favor+-rope-after"


def wait_for_the_second(comparison):
    assert comparison.wait_until(lambda: comparison.rows(SECOND) > 10), comparison.output


@pytest.mark.full
def test_where_all_checkpoints_are_damaged_training_begins_again_and_says_so(comparison, undisturbed):
    disturbed = comparison("--workers", "1").start()
    wait_for_the_second(disturbed)
    disturbed.kill()
    for path in disturbed.checkpoints(SECOND):
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    assert disturbed.finish() == undisturbed
    told = "no checkpoint is left to go on from, so training began again at step 0"
    assert told in (disturbed.out / "report.md").read_text()


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
    assert "is kept, and the same command goes on from it" in disturbed.output
    (small_disk / "filler").unlink()
    assert disturbed.finish() == undisturbed
    assert "1 of 3 runs are done already" in disturbed.output
    assert disturbed.leftovers() == []


def test_a_disk_that_is_full_from_the_start_is_one_line(comparison, small_disk):
    fill(small_disk)
    refused = comparison(out=small_disk / "comparison").start()
    assert refused.wait() == 2
    loading, error = refused.output.splitlines()
    assert "loading PyTorch" in loading
    assert error.startswith("error: --out ")
    assert "cannot be written (No space left on device); make room, or give another --out" in error
