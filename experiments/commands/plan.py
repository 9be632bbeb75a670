"""From options to a plan: what a comparison is to be, all of it checked without PyTorch; and whether it is there."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.config import Config
from experiments.data.registry import load_data
from experiments.options import BENCHMARK, RunOptions
from experiments.presets import get_preset
from experiments.records.lock import check_free, ended_by_itself
from experiments.records.record import is_finished, read_comparison, run_directory
from experiments.records.schema import CONTINUED, Comparison
from experiments.run.registry import check_resources
from experiments.run.time_limit import TimeLimit, parse_time
from experiments.studies.registry import STUDIES
from experiments.study import Study
from experiments.trackers.registry import parse_trackers
from experiments.variants import Variant, check_variants_differ, parse_variants

MEASURED = ("preset", "out", "device", "dry_run", "plugin", "config")
"""options of a study that trains nothing"""
MOST_RATE_SEEDS = 3
"""of the best learning rate and its neighbours"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison that is to be made: every variant with every seed, in one directory. Nothing is parsed again."""

    options: RunOptions
    study: Study
    config: Config
    """what all variants share"""
    variants: tuple[Variant, ...]
    seeds: int
    rate_seeds: int = MOST_RATE_SEEDS
    """how many seeds decide between the best learning rates, if there are as many"""
    limit: TimeLimit | None = None
    """of this comparison, or of several together"""

    @property
    def root(self) -> Path:
        """The comparison's directory."""
        return self.options.directory

    @cached_property
    def configs(self) -> dict[str, Config]:
        """By variant, what it is trained with."""
        return {variant.name: variant.config(self.config) for variant in self.variants}


def make_plan(options: RunOptions, config: Config | None = None, limit: TimeLimit | None = None) -> Plan:
    """The plan of a study's options; ``config``, if not the preset's, and ``limit``, if of several comparisons.

    Raises ValueError for wrong use.
    """
    study = STUDIES[options.study]
    if not study.variants:
        options.refuse_others(MEASURED, f"says what is trained, and {options.study} trains nothing")
    check_together(options)
    parse_trackers(options.tracker)
    check_resources(options.launcher, options.resources)
    seeds = options.seeds
    if config is None:
        preset = get_preset(options.preset, study)
        config, seeds = preset.config_of(options.settings), seeds or preset.seeds
    variants = parse_variants(options.variants or ",".join(study.variants)) if study.variants else ()
    check_variants_differ(variants, config)
    if limit is None and options.for_ is not None:
        limit = TimeLimit(parse_time(options.for_))
    return Plan(options=options, study=study, config=config, variants=variants, seeds=seeds or 0, limit=limit)


TOGETHER: tuple[tuple[Callable[[RunOptions], Any], str], ...] = (
    (
        lambda o: o.shard and o.nproc == 1,
        "--shard is given, and --nproc is 1; give --nproc 2 or more, or leave --shard out",
    ),
    (
        lambda o: (o.task is not None or o.pack is not None) and o.study != BENCHMARK,
        "--task and --pack are for run benchmark, and {0.study} has no tasks; leave them out",
    ),
    (
        lambda o: (o.extend or o.prepare) and o.dry_run,
        "--extend and --prepare change what is there, and --dry-run writes nothing; leave one out",
    ),
    (
        lambda o: o.prepare and o.learning_rates,
        "--prepare makes the directories of all runs at once, at rates that are known; leave out --learning-rates",
    ),
    (
        lambda o: o.for_ is not None and o.launcher != "local",
        "--for is for runs of this machine, and --launcher is {0.launcher}; leave one of them out",
    ),
)
"""what does not go together, and what is said of it"""


def check_together(options: RunOptions) -> None:
    """Raises ValueError if two options do not go together."""
    for is_wrong, said in TOGETHER:
        if is_wrong(options):
            raise ValueError(said.format(options))


def data_sets_of(options: RunOptions) -> Mapping[str, Mapping[str, Any]]:
    """The data sets that a study is run on one after the other, with their settings; none if one is given."""
    return {} if "data" in options.settings else get_preset(options.preset, STUDIES[options.study]).of_data


def nothing_to_do(plan: Plan) -> str:
    """What is said if all of it is trained, measured and reported, and nothing is newer; if not, or in doubt, ""."""
    options, root = plan.options, plan.root
    if options.extend or options.dry_run or options.prepare or not plan.variants:
        return ""
    try:
        there = read_comparison(root)
        if not (ended_by_itself(root) and _holds(there, plan) and is_reported(root, there)):
            return ""
        check_free(root)
    except (ValueError, OSError):  # no comparison, a damaged one or another's: whoever goes on says so
        return ""
    runs, report = len([*there.runs]), root / "report.html"
    notes = [f"note: {note}\n" for note in there.notes if not note.startswith(CONTINUED)]
    again = "without the report, the same command measures again what the notes name\n" if notes else ""
    said = f"{runs} of {runs} runs are done already, and the report is newer: there is nothing to do ({report})"
    return "".join([*notes, again, said])


def _holds(there: Comparison, plan: Plan) -> bool:
    options, config = plan.options, plan.config
    rates = sorted(map(float, options.learning_rates.split(","))) if options.learning_rates else []
    recorded = {variant.name: variant.settings for variant in there.variants}
    return (
        (there.study, asdict(Config()) | there.config) == (plan.study.name, asdict(config))
        and sorted(there.learning_rates) == rates
        and {*range(plan.seeds)} <= {*there.seeds}
        and options.baseline in (None, there.baseline)
        and all(_is_as_recorded(each, recorded.get(each.name), bool(rates)) for each in plan.variants)
        and all(is_finished(plan.root, *run, config.steps) for run in there.runs)
        and (
            options.data_file is None or load_data(config.data, None, options.data_file).sha256 == there.data[0].sha256
        )
    )


def _is_as_recorded(variant: Variant, recorded: dict[str, Any] | None, is_tuned: bool) -> bool:
    """Whether a variant is in the record with its settings, and with its own learning rate if that is searched."""
    if recorded is None or (is_tuned and "learning_rate" not in recorded):
        return False
    found = {"learning_rate": recorded["learning_rate"]} if is_tuned else {}
    return recorded == found | dict(variant.settings)


def is_reported(root: Path, there: Comparison) -> bool:
    """Whether there is a report, and nothing that it is made of was written after it."""
    report = root / "report.html"
    sources = [path for path in root.glob("[!.]*") if path.is_file()]  # the report's own files are no newer than it
    for run in there.runs:
        sources += run_directory(root, *run).glob("[!.]*.json*")
    return report.exists() and report.stat().st_mtime_ns >= max(path.stat().st_mtime_ns for path in sources)
