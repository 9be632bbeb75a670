"""A comparison's directory and its description: what can be added to it, and the notes it gathers."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from experiments.config import Config
from experiments.errors import RunFailed, why
from experiments.records import environment
from experiments.records.files import visible
from experiments.records.record import is_finished, read_comparison, run_config, run_directory
from experiments.records.schema import Comparison, GitRecord, VariantRecord
from experiments.variants import VARIANTS, is_variant

CONTINUED = "continued with another"
"""how the notes of add_changes begin"""
WRITTEN = ("report.md", "report.html", "figures", "measurements.jsonl", "tuning")
"""what a run writes, besides tables (.csv) and the directories of the variants"""
DEFAULTS = asdict(Config())
LONGEST_PATH_BELOW = f"{'x' * 100}/{'x' * 100}"
"""as long as any path of a comparison below its directory"""


def check_directory(root: Path) -> None:
    """Refuse an --out that no comparison can be in. Makes nothing.

    Raises:
        ValueError: it cannot be made or written, or it holds something else, which a report would overwrite.
    """
    try:
        with contextlib.suppress(FileNotFoundError):
            (root / LONGEST_PATH_BELOW).stat()
        # Of a path that is not there yet, the system does not look at the rest.
        nearest = next((path for path in (root, *root.parents) if os.path.lexists(path)), root)
        for name in root.relative_to(nearest).parts:
            with contextlib.suppress(FileNotFoundError):
                (nearest / name).stat()
        if not nearest.is_dir():
            raise FileExistsError(errno.EEXIST, f"{nearest} is in the way")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise _cannot_be_written(root, error) from None
    try:
        names = [name for name in os.listdir(root) if not name.startswith(".")]
    except OSError:  # not there yet, or not readable; make_directory tells whether it can be written
        return
    taken = [name for name in names if name in WRITTEN or name in VARIANTS or name.endswith(".csv")]
    if taken and "comparison.json" not in names:
        raise ValueError(
            f"--out {root} holds {min(taken)!r} and no comparison.json, so it is not a comparison's, and what is in it "
            "would be overwritten; give a directory that is new or empty"
        )


def new_comparison(root: Path, study: str, preset: str, command: str, device: torch.device) -> Comparison:
    """What every comparison.json says: what was run, with which code, where and when."""
    return Comparison(
        name=Path(os.path.abspath(root)).name,
        study=study,
        preset=preset,
        command=visible(command),
        config={},
        variants=[],
        seeds=[],
        git=environment.git(),
        versions=environment.versions(),
        machine=environment.machine(device),
        data=[],
        evaluated_windows={},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=[],
    )


def check_same_study(root: Path, there: Comparison, comparison: Comparison) -> None:
    """Raises ValueError if the comparison in ``root`` is one of another study."""
    if there.study != comparison.study:
        raise ValueError(
            f"--out {root} holds a comparison of the study {there.study}, not {comparison.study}; give another --out"
        )


def differing_settings(there: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """For each setting that two configurations do not share: its name and both values."""

    def value(settings: dict[str, Any], name: str) -> str:
        if name not in settings and name in DEFAULTS:
            return repr(DEFAULTS[name])  # a record from before there was such a setting
        return repr(settings[name]) if name in settings else "nothing"

    return [
        f"{name} ({value(there, name)} there, {value(now, name)} now)"
        for name in {**now, **there}
        if value(there, name) != value(now, name)
    ]


def refuse_if_differing(root: Path, differing: list[str]) -> None:
    """Raises ValueError that names what differs, if anything does."""
    if differing:
        raise ValueError(f"--out {root} holds a comparison that differs in {', '.join(differing)}; give another --out")


def merge_with_existing(root: Path, comparison: Comparison) -> Comparison:
    """The comparison to go on with in ``root``: the one there with the new variants and seeds added.

    Raises:
        ValueError: the one there has another study, configuration or data, so the two cannot be one.
    """
    path = root / "comparison.json"
    if not path.is_file():
        return comparison
    there = read_comparison(root)
    check_same_study(root, there, comparison)
    differing = differing_settings(there.config, comparison.config)
    grids = there.learning_rates, comparison.learning_rates
    if grids[0] != grids[1]:
        differing.append(f"learning_rates ({grids[0]} there, {grids[1]} now)")
    contents = [record.data[0].sha256[:12] for record in (there, comparison)]
    if contents[0] != contents[1]:
        differing.append("the content of the data set (sha256 {}... there, {}... now)".format(*contents))
    kinds = [f"{record.objective.name} {record.objective.tokenizer_sha256[:12]}" for record in (there, comparison)]
    if there.objective != comparison.objective:
        differing.append("what is trained ({} there, {} now)".format(*kinds))
    refuse_if_differing(root, differing)
    unknown = [variant.name for variant in there.variants if not is_variant(variant.name)]
    if unknown:
        raise ValueError(f"--out {root} holds variants that this version does not have: {', '.join(unknown)}")
    recorded = {variant.name: variant for variant in there.variants}
    for variant in comparison.variants:
        if variant.name in recorded:
            if grids[0]:
                _adopt_learning_rate(recorded[variant.name], variant)
            settings = (described.settings for described in (recorded[variant.name], variant))
            refuse_if_differing(root / variant.name, differing_settings(*settings))
    new = [variant for variant in comparison.variants if variant.name not in recorded]
    merged = replace(there, variants=there.variants + new, seeds=sorted({*there.seeds, *comparison.seeds}))
    runs = list(merged.runs)
    for run in runs:
        _check_run(root, run, merged)
    all_done = all(is_finished(root, *run, comparison.config["steps"]) for run in runs)
    devices = [record.machine.get("device") for record in (there, comparison)]
    if not all_done and (devices[0] == "cpu") != (devices[1] == "cpu"):
        refuse_if_differing(root, [f"the device ({devices[0]} there, {devices[1]} now)"])
    add_changes(merged, comparison, all_done)
    return merged


def _adopt_learning_rate(recorded: VariantRecord, variant: VariantRecord) -> None:
    """The rate that was chosen when the comparison was run before."""
    if "learning_rate" in recorded.settings:
        variant.settings = variant.settings | {"learning_rate": recorded.settings["learning_rate"]}


def check_runs(root: Path, comparison: Comparison) -> None:
    """Raises ValueError if a run that has records was made with something else than the comparison says."""
    for run in comparison.runs:
        _check_run(root, run, comparison)


def _check_run(root: Path, run: tuple[str, int], comparison: Comparison) -> None:
    """Raises ValueError if a run was made with something else: copied from another comparison, or edited."""
    made_with, directory = run_config(root, *run), run_directory(root, *run)
    if made_with is None:
        if (directory / "metrics.jsonl").exists():
            raise ValueError(f"{directory} has records and no config.json; put it back, or remove the directory")
        return
    variant = next(variant for variant in comparison.variants if variant.name == run[0])
    differing = differing_settings(made_with.config, comparison.config | variant.settings)
    contents = made_with.data_sha256[:12], comparison.data[0].sha256[:12]
    if contents[0] != contents[1]:
        differing.append("the content of the data set (sha256 {}... there, {}... now)".format(*contents))
    refuse_if_differing(directory, differing)


def add_changes(merged: Comparison, comparison: Comparison, all_done: bool) -> None:
    """Note what is no longer as it was when the comparison in ``merged`` was begun.

    When all of it was done before, only the code and the versions still matter: they measured and reported.
    """
    kinds = {"command": "command", "versions": "set of versions", "machine": "machine"}
    for key, kind in kinds.items():
        there, now = getattr(merged, key), getattr(comparison, key)
        if there != now and (key == "versions" or not all_done):
            add_notes(merged, [f"{CONTINUED} {kind}: {_difference(there, now)}"])
    if merged.git != comparison.git and merged.git != replace(comparison.git, code_sha256=""):
        add_notes(merged, [_code_change(merged.git, comparison.git)])


def _difference(there: Any, now: Any) -> str:
    if not isinstance(now, dict):
        return str(now)
    names = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    return ", ".join(f"{name} {now.get(name)} (before: {there.get(name)})" for name in names)


def _code_change(there: GitRecord, now: GitRecord) -> str:
    def named(git: GitRecord) -> str:
        return git.commit[:12] + (" with uncommitted changes" if git.dirty else "")

    same = there.code_sha256 == now.code_sha256
    consequence = (
        "the files of the code are the same" if same else "what was measured before and since then may not compare"
    )
    return f"{CONTINUED} state of the code: commit {named(now)}, begun with {named(there)}; {consequence}"


def add_notes(comparison: Comparison, notes: list[str]) -> None:
    comparison.notes = list(dict.fromkeys([*comparison.notes, *notes]))


@contextmanager
def failing_after_it_began(root: Path) -> Iterator[None]:
    """Turn what goes wrong from here on into RunFailed: it is not the user's wrong use any more."""
    try:
        yield
    except (ValueError, OSError) as error:
        kept = f"what was recorded in {root} is kept, and the same command goes on from it"
        raise RunFailed(f"{type(error).__name__}: {error}; {kept}") from error


def make_directory(root: Path) -> None:
    """Make the directory of a comparison, and those above it, unless it is there.

    Raises:
        ValueError: it cannot be made or written; then none of them was made.
    """
    missing = [path for path in (root, *root.parents) if not path.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise _cannot_be_written(root, error) from None


def _cannot_be_written(root: Path, error: OSError | ValueError) -> ValueError:
    return ValueError(f"--out {root} cannot be written ({why(error)}); give a directory that can be made and written")
