"""A file system that is really full."""

import contextlib
import os
import subprocess

import pytest

FIRST, SECOND, THIRD = "softmax-rope", "favor+-rope-after", "elu+1-rope-after"


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


@pytest.mark.parametrize(
    "stays_full",
    [pytest.param(False, id="for a while", marks=pytest.mark.full), pytest.param(True, id="to the end")],
)
def test_a_disk_that_fills_while_a_run_trains(comparison, small_disk, undisturbed, counts, stays_full):
    disturbed = comparison("--workers", "1", out=small_disk / "comparison").start()
    assert disturbed.wait_until(lambda: disturbed.rows(SECOND) > 10), disturbed.output
    fill(small_disk)
    if not stays_full:
        assert disturbed.wait_until(lambda: f"{SECOND} seed 0: failed" in disturbed.output), disturbed.output
        (small_disk / "filler").unlink()
    assert disturbed.wait() == 1, disturbed.output
    assert "Traceback" not in disturbed.output
    fates = {variant: disturbed.status(variant).state for variant in disturbed.variants}
    assert fates == {FIRST: "done", SECOND: "failed", THIRD: "failed" if stays_full else "done"}
    assert "No space left on device" in disturbed.status(SECOND).reason
    for name in ("report.md", "report.html"):
        assert "No space left on device" in (disturbed.out / name).read_text()
    if stays_full:
        (small_disk / "filler").unlink()
    assert disturbed.start().wait() == 0, disturbed.output
    assert f"{1 if stays_full else 2} of 3 runs are done already" in disturbed.output
    assert disturbed.results() == undisturbed
    assert disturbed.leftovers() == []
    counts["full disks survived"] += 1


def test_a_disk_that_is_full_from_the_start_is_one_line(comparison, small_disk, counts):
    fill(small_disk)
    refused = comparison(out=small_disk / "comparison").start()
    assert refused.wait() == 2
    assert refused.error.startswith("error: --out ")
    assert "cannot be written (No space left on device); make room, or give another --out" in refused.error
    counts["full disks survived"] += 1
