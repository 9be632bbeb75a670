"""``benchmark submit``: a variant from outside goes through the benchmark, into one file; ``report`` reads such files.

The file is a zip: ``submission.json`` (schema ``Submission``) and the packed comparison of each task in a folder of its
name, without weights.
"""

import hashlib
import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct, structs

from experiments.commands.pack import write_packed
from experiments.commands.run_benchmark import run_benchmark
from experiments.console import make_console
from experiments.data.registry import load_data
from experiments.options import RunOptions, as_words
from experiments.records import store
from experiments.records.files import LARGEST_RECORD, read_file, write_atomically, wrong_file
from experiments.records.parquet import pyarrow
from experiments.records.record import decoded, read_comparison, write_record
from experiments.records.schema import Comparison, GitRecord, Origin
from experiments.report.overview import comparisons_in, write_overview
from experiments.report.report import result_table
from experiments.studies.benchmark.definition import NAME, STUDY, Benchmark, read_benchmark
from experiments.studies.registry import STUDIES
from experiments.train.chosen_objective import make_objective
from experiments.train.costs import costs
from experiments.train.models import check_parameters_match
from experiments.variants import get_variant

ABOUT = "submission.json"
PACKED_FILE = re.compile(r"(?:tuning/)?[a-z]+\.(?:json|parquet)")
"""of a task, in its folder"""
MEASURE = "softmax-rope"
"""the variant whose parameters all others have, within 1 %"""
REMEDY = "ask for the file again"
REFUSED = zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError
"""what is raised by what is no zip, or a damaged or encrypted one"""


class Submission(Struct, kw_only=True):
    """What submission.json says."""

    version: str
    """of the benchmark"""
    preset: str
    variant: str
    plugins: list[Origin]
    """the code from outside, with its sha256"""
    git: GitRecord
    versions: dict[str, Any]
    machine: dict[str, Any]
    files: dict[str, str]
    """by name, the sha256 of all others"""


def submit(options: RunOptions, out: Path) -> int:
    """Run the one variant of ``options`` through their tasks, and write ``out``. Returns the exit status.

    It is trained in ``out`` with ``.runs`` behind its name, where the same command goes on. Raises ValueError, before
    anything is trained, if it would not be merged, or ``out`` is there.
    """
    if out.exists():
        raise ValueError(f"--out {out} is there already; remove it, or give another name")
    benchmark, name = read_benchmark(), str(options.variants)
    tasks = tasks_of(benchmark, options.task)
    _check_variant(benchmark, name, tasks, options)
    work = out.with_name(f"{out.name}.runs")
    pyarrow()
    for root in comparisons_in(work):
        if [each.name for each in read_comparison(root).variants] != [name]:
            raise ValueError(f"{root} has runs of another variant than {name}; give --out another name")
    given = {"variant" if each == "variants" else each: value for each, value in options.given.items()}
    words = "benchmark", "submit", *as_words(given | {"seeds": options.seeds})
    options = replace(options, task=",".join(tasks), out=work, words=words)
    run_benchmark(replace(options, dry_run=True))  # how long it will take
    status = run_benchmark(options)
    if status == 0:
        write_submission(work, tasks, name, out)
        print(f"{out}: {name}, {len(tasks)} tasks of benchmark {NAME}")
    return status


def tasks_of(benchmark: Benchmark, given: str | None) -> list[str]:
    """The tasks that are named, or all of the order; before each the one that finds its learning rates.

    Raises ValueError if there is no such task, or it is not one in which a variant is trained.
    """
    training = [name for name, task in benchmark.tasks.items() if task.study == STUDY and not task.neighbours_of]
    ordered = {name for stage in benchmark.stages for name in stage.tasks}
    names = given.split(",") if given else [name for name in training if name in ordered]
    benchmark.comparisons(tasks=tuple(names))
    if others := [name for name in names if name not in training]:
        raise ValueError(f"--task {','.join(others)} tells nothing of a variant of your own; leave it out")
    return [*dict.fromkeys(each for name in names for each in (benchmark.tasks[name].rates, name) if each)]


def _check_variant(benchmark: Benchmark, name: str, tasks: list[str], options: RunOptions) -> None:
    """Raises ValueError if the variant is one of the benchmark's, changes what is frozen, or is of another size."""
    variant = get_variant(name)
    if any(name in task.variants + task.more for task in benchmark.tasks.values()):
        raise ValueError(f"--variant {name} is one of benchmark {NAME} itself; `run benchmark` trains it")
    if "learning_rate" in variant.settings:
        raise ValueError(f"--variant {name} has a learning rate, and benchmark {NAME} searches it; leave it out")
    for task in tasks:
        if changed := frozen_settings(benchmark, task, variant.settings):
            raise ValueError(f"--variant {name} sets {', '.join(changed)}, which benchmark {NAME} has frozen")
        config = benchmark.config(task, options.preset)
        objective = make_objective(load_data(config.data, options.data_dir), config)
        compared = (get_variant(MEASURE), variant)
        counts = {each.name: (costs(each, each.config(config), objective).parameters, 0) for each in compared}
        check_parameters_match(counts)


def frozen_settings(benchmark: Benchmark, task: str, settings: Iterable[str]) -> list[str]:
    """Those of a variant's settings that are a task's, and the same for all; its learning rate is its own."""
    wanted = benchmark.tasks[task]
    frozen = {*benchmark.recipe[wanted.recipe], *benchmark.sizes[wanted.size], *wanted.settings, "data", "num_features"}
    return sorted({*settings} & frozen - {"learning_rate"})


def write_submission(work: Path, tasks: list[str], variant: str, out: Path) -> None:
    """Write the file of what is trained in ``work``. Equal records give equal bytes."""
    with TemporaryDirectory() as temporary:
        packed = Path(temporary)
        for task in tasks:
            write_packed(work / task, packed / task)
        found = sorted(path for path in packed.rglob("*") if path.is_file())
        files = {path.relative_to(packed).as_posix(): path.read_bytes() for path in found}
    of_all = [read_comparison(work / task) for task in tasks]
    plugins = {(each.module, each.sha256): each for comparison in of_all for each in comparison.plugins}
    if len({module for module, _ in plugins}) < len(plugins):
        raise ValueError(f"the code of {variant} was changed while it was trained; remove {work} and train it again")
    last = {name: getattr(of_all[-1], name) for name in ("preset", "git", "versions", "machine")}
    about = Submission(version=NAME, variant=variant, plugins=[*plugins.values()], files=_hashes(files), **last)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in {ABOUT: msgspec.json.format(msgspec.json.encode(about)), **files}.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # of the year 1980, whenever it is made
    write_atomically(out, content.getvalue())


def _hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def report(directory: Path, submitted: Iterable[Path], out: Path | None) -> int:
    """Print the table of each task in a directory, submitted variants in it. Returns the exit status.

    The reports of all are written into ``out``, if it is given; nothing is written into ``directory``. Raises
    ValueError if a file is damaged, or its variant was not trained as those in ``directory``.
    """
    if out is not None and out.exists():
        raise ValueError(f"--out {out} is there already; remove it, or give another name")
    roots = [root for root in comparisons_in(directory) if read_comparison(root).study == STUDY]
    if not roots:
        raise ValueError(f"{directory} holds no task; give what `run benchmark` wrote or packed")
    with TemporaryDirectory() as temporary:
        merged = Path(temporary)
        for root in roots:
            write_packed(root, merged / root.name)
        for path in submitted:
            merge(path, merged)
        for root in comparisons_in(merged):
            make_console().print(result_table(root))
        if out is not None:
            write_overview(merged, STUDIES, lambda path: print(out / Path(path).relative_to(merged)))
            shutil.copytree(merged, out)
    return 0


def merge(path: Path, merged: Path) -> None:
    """Add what a file holds to the packed tasks in ``merged``. Raises ValueError as ``report``."""
    with TemporaryDirectory() as temporary:
        at = Path(temporary)
        about, presets = unpack(path, at), {read_comparison(root).preset for root in comparisons_in(merged)}
        if about.preset not in presets:
            raise ValueError(f"{path} is of the size {about.preset}, and here are runs of {', '.join(sorted(presets))}")
        roots = comparisons_in(at)
        if not roots:
            raise wrong_file(str(path), "holds no task", REMEDY)
        for root in roots:
            comparison, there = read_comparison(root), merged / root.name
            if not (there / "comparison.json").exists():
                print(f"{path}: {root.name} is left out, as there are no runs of it to compare with")
                continue
            if reasons := unlike(root.name, about.variant, comparison, read_comparison(there)):
                told = f"{path} cannot be merged, as in {root.name} it is not as the others"
                raise ValueError(f"{told}: {'; '.join(reasons)}")
            (variant,) = comparison.variants
            comparison.variants = [structs.replace(variant, submitted=path.name)]
            # Others have none of further seeds: they would be runs that are missing.
            comparison.seeds = [seed for seed in comparison.seeds if seed in read_comparison(there).seeds]
            write_record(root / "comparison.json", comparison)
            write_packed(root, there)


def unpack(path: Path, at: Path) -> Submission:
    """Write the files of a submission into an empty directory. Raises ValueError if it is damaged, or holds others."""
    tasks = read_benchmark().tasks
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(path, REMEDY))) as archive:
            members = archive.infolist()
            if sum(each.file_size for each in members) > LARGEST_RECORD:
                raise wrong_file(str(path), f"unpacks to more than {LARGEST_RECORD:,} bytes", REMEDY)
            if {each.compress_type for each in members} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise wrong_file(str(path), "is compressed in another way than ours", REMEDY)
            files = {each.filename: archive.open(each).read(each.file_size) for each in members}
    except REFUSED as error:
        raise wrong_file(str(path), f"is no submission, or a damaged one ({error})", REMEDY) from None
    about = decoded(files.pop(ABOUT, b""), Submission, f"{path}: {ABOUT}", REMEDY)
    if about.version != NAME:
        raise ValueError(f"{path} is of benchmark {about.version}, and this is {NAME}; submit it again")
    for name in files:
        task, _, rest = name.partition("/")
        if task not in tasks or not PACKED_FILE.fullmatch(rest):
            raise wrong_file(str(path), f"holds {name!r}, which is no file of a task of benchmark {NAME}", REMEDY)
    if about.files != _hashes(files):
        raise wrong_file(str(path), "is damaged: its files are not those that it names", REMEDY)
    for name, content in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(content)
    return about


def unlike(task: str, variant: str, here: Comparison, there: Comparison) -> list[str]:
    """Why the submitted comparison of a task cannot be one with the one ``there``."""
    if [each.name for each in here.variants] != [variant]:
        return [f"it holds other variants than {variant}"]
    reasons = []
    if variant in {each.name for each in there.variants}:
        reasons.append(f"{variant} is there already")
    before, now = (
        each.config | {"preset": each.preset, "learning rates": each.learning_rates, "text": each.data[0].sha256}
        for each in (there, here)
    )
    reasons += store.differing(before, now)
    measure = there.variants[0]
    for each in here.variants:
        reasons += [f"it sets {name}" for name in frozen_settings(read_benchmark(), task, each.settings)]
        count, wanted = (one.parameters - one.position_parameters for one in (each, measure))
        if abs(count / wanted - 1) > 0.01:
            reasons.append(f"it has {count:,} parameters, and {measure.name} {wanted:,}")
    return reasons
