"""A comparison's directory and its description: what can be added to it, and the notes it gathers."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins
from msgspec.structs import replace

from experiments.config import Config
from experiments.errors import RunFailed, why
from experiments.extensions import choices
from experiments.records import environment
from experiments.records.files import visible
from experiments.records.record import is_finished, read_comparison, run_config, run_directory, run_status
from experiments.records.schema import CONTINUED as CONTINUED
from experiments.records.schema import Comparison
from experiments.variants import VARIANTS, has_own_rate, is_variant

ANOTHER_COMMAND = f"{CONTINUED} command: "
WRITTEN = ("report.md", "report.html", "figures", "measurements.jsonl", "tuning")
"""what a run writes, besides tables (.csv) and the directories of the variants"""
MOST_NAMES = 6
"""of runs, in a sentence"""
DEFAULTS = asdict(Config())


def check_directory(root: Path) -> None:
    """Raises ValueError if --out is no directory, or one that holds something else, which a report would overwrite."""
    try:
        with suppress(FileNotFoundError):
            (root / f"{'x' * 100}/{'x' * 100}").stat()  # as long as any path of a comparison
        names = os.listdir(root) if root.exists() else []
    except (OSError, ValueError) as error:
        raise _cannot_be_written(root, error) from None
    taken = [name for name in names if name in WRITTEN or name in VARIANTS or re.fullmatch(r"[^.].*\.csv", name)]
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


def refuse_if_differing(root: Path, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ValueError that names each setting in which two configurations differ, and both values."""
    if found := differing(there, now):
        raise ValueError(f"--out {root} holds a comparison that differs in {', '.join(found)}; give another --out")


def differing(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Each setting in which two configurations differ, with both values."""
    # A record from before there was such a setting has its default.
    values = {
        name: [str({**DEFAULTS, **each}.get(name, "nothing")) for each in (there, now)] for name in {**now, **there}
    }
    return [f"{name} ({before} there, {after} now)" for name, (before, after) in values.items() if before != after]


def _of_data(sha256: str) -> dict[str, str]:
    return {"the content of the data set": f"sha256 {sha256[:12]}..."}


def _of_weights(run: str, sha256: str) -> dict[str, str]:
    return {f"the encoder that {run} begins with": f"sha256 {sha256[:12]}..." if sha256 else "none"}


def check_can_be_one(root: Path, there: Comparison, comparison: Comparison) -> None:
    """Raises ValueError if the comparison in ``root`` has another study, configuration or data."""
    check_same_study(root, there, comparison)
    before, now = (each.config | {"learning_rates": each.learning_rates} for each in (there, comparison))
    for each, settings in ((there, before), (comparison, now)):
        settings |= {f"the objective's {name}": value for name, value in to_builtins(each.objective).items()}
        for data in each.data:
            settings |= _of_data(data.sha256)
        for run in there.initial_weights.keys() & comparison.initial_weights:
            settings |= _of_weights(run, each.initial_weights[run])
    refuse_if_differing(root, before, now)


def merge_with_existing(root: Path, comparison: Comparison) -> Comparison:
    """The comparison to go on with in ``root``: the one there with the new variants and seeds added.

    Raises:
        ValueError: the one there has another study, configuration or data, so the two cannot be one.
    """
    if not (root / "comparison.json").is_file():
        return comparison
    there = read_comparison(root)
    check_can_be_one(root, there, comparison)
    unknown = [variant.name for variant in there.variants if not is_variant(variant.name)]
    if unknown:
        raise ValueError(f"--out {root} holds variants that this version does not have: {', '.join(unknown)}")
    recorded = {variant.name: variant for variant in there.variants}
    for variant in comparison.variants:
        settings = recorded.get(variant.name, variant).settings
        if there.learning_rates and "learning_rate" in settings:  # what was found when the comparison was run before
            variant.settings = variant.settings | {"learning_rate": settings["learning_rate"]}
        refuse_if_differing(root / variant.name, settings, variant.settings)
        recorded.setdefault(variant.name, variant)
    seeds = sorted({*there.seeds, *comparison.seeds})
    # One rule for all variants: what has found a rate by one goes on by it.
    has_found = any("learning_rate" in each.settings and not has_own_rate(each.name) for each in there.variants)
    rate_seeds = there.rate_seeds if has_found else max(there.rate_seeds, comparison.rate_seeds)
    initial_weights = there.initial_weights | comparison.initial_weights
    baseline = comparison.baseline or there.baseline or comparison.baseline  # one that was chosen, now or before, stays
    merged = replace(
        there,
        variants=list(recorded.values()),
        seeds=seeds,
        rate_seeds=rate_seeds,
        initial_weights=initial_weights,
        baseline=baseline,
    )
    check_runs(root, merged)
    all_done = all(is_finished(root, *run, comparison.config["steps"]) for run in merged.runs)
    devices = [record.machine.get("device") for record in (there, comparison)]
    if not all_done and (devices[0] == "cpu") != (devices[1] == "cpu"):
        refuse_if_differing(root, {"the device": devices[0]}, {"the device": devices[1]})
    add_changes(merged, comparison, all_done)
    return merged


def with_baseline(comparison: Comparison, name: str | None) -> Comparison:
    """The comparison with one baseline for all variants, or as it is. Raises ValueError if it has no such variant."""
    if name is None:
        return comparison
    names = [variant.name for variant in comparison.variants]
    if not names:
        raise ValueError(f"--baseline is {name!r}, and {comparison.study} trains nothing to compare; leave it out")
    if name not in names:
        raise ValueError(f"--baseline is {name!r}, which is no variant of the comparison; {choices(name, names)}")
    return replace(comparison, baseline=name)


def check_runs(root: Path, comparison: Comparison) -> None:
    """Raises ValueError if a run was made with something else: copied from another comparison, or edited."""
    settings = {variant.name: comparison.config | variant.of_all_layers for variant in comparison.variants}
    for run in comparison.runs:
        made_with, directory, name = run_config(root, *run), run_directory(root, *run), "{}/seed{}".format(*run)
        if made_with is not None:
            there = made_with.config | _of_data(made_with.data_sha256)
            there |= _of_weights(name, made_with.initial_weights_sha256)
            now = settings[run[0]] | _of_data(comparison.data[0].sha256)
            refuse_if_differing(directory, there, now | _of_weights(name, comparison.initial_weights.get(name, "")))
        elif (directory / "metrics.jsonl").exists():
            raise ValueError(f"{directory} has records and no config.json; put it back, or remove the directory")


def add_changes(merged: Comparison, comparison: Comparison, all_done: bool) -> None:
    """Note what is no longer as it was when the comparison in ``merged`` was begun.

    When all of it was done before, only the code and the versions still matter: they measured and reported.
    """
    whole = [({each.name for each in x.variants}, set(x.seeds), x.baseline, x.rate_seeds) for x in (merged, comparison)]
    if not all_done and whole[0] == whole[1]:
        # The new command alone makes all of it.
        merged.command = comparison.command
        merged.notes = [note for note in merged.notes if not note.startswith(ANOTHER_COMMAND)]
    for key, kind in {"command": "command", "versions": "set of versions", "machine": "machine"}.items():
        before, now = (_without_proofs(getattr(x, key)) for x in (merged, comparison))
        if before != now and (key == "versions" or not all_done):
            add_notes(merged, [f"{CONTINUED} {kind}: {_difference(before, now)}"])
    before, now = merged.git, comparison.git
    if before != now and before != replace(now, code_sha256=""):
        commits = [git.commit[:12] + (" with uncommitted changes" if git.dirty else "") for git in (now, before)]
        told = "what was measured before and since then may not compare"
        if before.code_sha256 == now.code_sha256:
            told = "the files of the code are the same"
        changed = "commit {}, begun with {}".format(*commits)
        add_notes(merged, [f"{CONTINUED} state of the code: {changed}; {told}"])


def commands_of(comparison: Comparison) -> list[str]:
    """The commands that make a comparison, in the order in which they were given."""
    later = [note for note in comparison.notes if note.startswith(ANOTHER_COMMAND)]
    return [comparison.command, *(note.removeprefix(ANOTHER_COMMAND) for note in later)]


def _without_proofs(said: Any) -> Any:
    return {name: x for name, x in said.items() if name != environment.PROOFS} if isinstance(said, dict) else said


def trained_otherwise(root: Path, comparison: Comparison) -> list[str]:
    """A sentence on the runs that another kernel, PyTorch or code trained than the record names, for each such."""
    runs: dict[str, list[str]] = {}
    recorded = environment.software_of(comparison)
    for variant, seed in comparison.runs:
        for software in run_status(root, variant, seed).trained_with:
            if told := software.unlike(recorded, "this record"):
                runs.setdefault(told, []).append(f"{variant} seed {seed}")
    return [f"some runs were trained with {told}: {_some(names)}" for told, names in runs.items()]


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} other runs (their status.json says so)" if more > 0 else "")


def _difference(there: Any, now: Any) -> str:
    if not isinstance(now, dict):
        return str(now)
    names = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    return ", ".join(f"{name} {now.get(name)} (before: {there.get(name)})" for name in names)


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
            with suppress(OSError):
                path.rmdir()
        raise _cannot_be_written(root, error) from None


def _cannot_be_written(root: Path, error: OSError | ValueError) -> ValueError:
    return ValueError(f"--out {root} cannot be written ({why(error)}); give a directory that can be made and written")
