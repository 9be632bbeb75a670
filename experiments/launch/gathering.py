"""A run's files, sent to a machine that does not see the comparison's directory, and gathered from it."""

import shutil
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from experiments.launch.launcher import Job
from experiments.records.files import LARGEST_CHECKPOINT, read_file, write_atomically


class Files(NamedTuple):
    """Files by their names in the comparison's directory."""

    contents: dict[str, bytes]
    names: frozenset[str]
    """all that the run has, also those whose contents are not sent again"""


def files_of(job: Job) -> Files:
    """All that a run needs and has: its own files, and the records beside the variants (the tokenizer)."""
    shared = {path.name: read_file(path, "remove it") for path in job.root.glob("[!.]*.json")}
    contents = shared | Gatherer(job).changed().contents
    return Files(contents, frozenset(contents))


class Gatherer:
    """Tells what of a run's files has changed since it was asked before."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[str, tuple[int, int]] = {}

    @property
    def has_new_checkpoint(self) -> bool:
        """Whether there is a checkpoint, whole, that was not told of."""
        there = self._job.directory.glob("checkpoint/[!.]*/manifest.json")
        return any(path.relative_to(self._job.root).as_posix() not in self._known for path in there)

    def changed(self) -> Files:
        contents, known = dict[str, bytes](), dict[str, tuple[int, int]]()
        for path in sorted(self._job.directory.rglob("*")):  # checkpoints come before metrics, which may know more
            name = path.relative_to(self._job.root).as_posix()
            hidden = any(part.startswith(".") for part in path.relative_to(self._job.directory).parts)
            with suppress(FileNotFoundError, ValueError):  # of a checkpoint that is being removed
                if hidden or not path.is_file():
                    continue
                state = path.stat()
                found = state.st_mtime_ns, state.st_size
                if self._known.get(name) != found:
                    contents[name] = read_file(path, "remove it", LARGEST_CHECKPOINT)
                known[name] = found
        self._known = known
        return Files(contents, frozenset(known))


def store(files: Files, root: Path, within: Path) -> None:
    """Write what was sent into a comparison's directory, and remove the checkpoints that the run has no more.

    Raises ValueError, and writes nothing, if a file would not be ``within`` a directory; or OSError.
    """
    for name in files.contents:
        if not (root / name).is_relative_to(within) or ".." in PurePosixPath(name).parts:
            raise ValueError(f"a machine sent the file {name!r}, which is not in {within}")
    # A checkpoint is whole when its manifest is there.
    for name in sorted(files.contents, key=lambda name: name.endswith("/manifest.json")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(root / name, files.contents[name])
    for path in within.glob("checkpoint/[!.]*"):
        if not any(name.startswith(f"{path.relative_to(root).as_posix()}/") for name in files.names):
            shutil.rmtree(path)
