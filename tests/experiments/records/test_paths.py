"""A comparison writes inside its own directory only, and reading ends whatever is there."""

import os
import shutil
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.records.files import LARGEST_RECORD, check_links, open_to_append, read_file, write_atomically
from experiments.run.job import train_directory

VARIANT = "elu+1-none"
COMMAND = ["run", "convergence", "--preset", "smoke", "--steps", "4", "--evaluate-every", "4", "--variants", VARIANT]
RUN = f"{VARIANT}/seed0"


def no_process(self, jobs):
    raise OSError("no process can be had")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A comparison whose run is still to be trained."""
    out = tmp_path_factory.mktemp("made") / "out"
    text = out.with_name("text")
    text.write_text("to be or not to be\n" * 500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.commands.run_training.write_report", lambda there, study: there / "report.html")
        patch.setattr("experiments.run.local.Local.start", no_process)
        assert main([*COMMAND, "--seeds", "1", "--data-file", str(text), "--out", str(out)]) == 1
    return out


@pytest.fixture
def again(made, tmp_path):
    """A copy of the comparison, and a function that runs its command on it."""
    out = shutil.copytree(made, tmp_path / "out")
    options = ["--seeds", "1", "--data-file", str(made.with_name("text")), "--out", str(out)]
    return out, lambda: main([*COMMAND, *options])


def moved_out(path, to):
    """Put a link in the place of a file or directory, which is outside now; returns what must not change."""
    shutil.move(path, to)
    path.symlink_to(to)
    return content_of(to)


def content_of(path):
    return {file: file.read_bytes() if file.is_file() else None for file in (path, *path.rglob("*"))}


@pytest.mark.parametrize("name", [".lock", f"{RUN}/status.json", VARIANT])
def test_run_writes_nothing_through_a_link(again, tmp_path, capsys, name):
    out, run = again
    victim = tmp_path / "victim"
    kept = moved_out(out / name, victim)
    assert run() == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {out / name} is a link to {victim}, outside of {out}; remove the link")
    assert told.count("\n") == 1
    assert content_of(victim) == kept


def test_train_writes_nothing_through_a_link(again, tmp_path):
    out, _ = again
    kept = moved_out(out / RUN / "status.json", tmp_path / "victim")
    with pytest.raises(ValueError, match=r"status.json is a link to .*victim, outside of"):
        train_directory(out / RUN)
    assert content_of(tmp_path / "victim") == kept


@pytest.mark.parametrize("name", ["comparison.json", f"{RUN}/metrics.jsonl"])
def test_a_pipe_is_refused_and_never_waited_for(again, capsys, name):
    out, run = again
    (out / name).unlink(missing_ok=True)
    os.mkfifo(out / name)
    assert run() == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(out / name) in told
    assert "remove it" in told or "run the comparison again" in told


def test_links_within_the_directory_and_a_linked_directory_itself_are_fine(tmp_path):
    there = tmp_path / "there"
    (there / "a").mkdir(parents=True)
    (there / "b").symlink_to(there / "a")
    (tmp_path / "link").symlink_to(there)
    check_links(there)
    check_links(tmp_path / "link")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_only_regular_files_are_read_and_appended_to(tmp_path, make):
    make(tmp_path / "file")
    with pytest.raises(ValueError, match="file"):
        read_file(tmp_path / "file", "remove it")
    with pytest.raises(OSError, match="it is a link or no file; remove it"):
        open_to_append(tmp_path / "file")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(LARGEST_RECORD + 1)
    with pytest.raises(ValueError, match="larger than"):
        read_file(tmp_path / "large", "remove it")
    if os.access("/proc/kmsg", os.R_OK):
        assert read_file(Path("/proc/kmsg"), "remove it") == b""


def test_a_link_in_the_way_of_a_new_file_is_replaced(tmp_path):
    kept = tmp_path / "victim"
    kept.write_bytes(b"kept")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(kept)
    (tmp_path / "file").symlink_to(kept)
    write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "file").is_symlink()
    assert kept.read_bytes() == b"kept"
