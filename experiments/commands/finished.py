"""Whether a command has nothing to do: its comparison is trained, measured and reported. Answered without PyTorch."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.config import Config
from experiments.options import RunOptions
from experiments.presets import get_preset
from experiments.records.lock import check_free
from experiments.records.record import is_finished, read_comparison, run_directory
from experiments.records.schema import CONTINUED, Comparison
from experiments.study import Study
from experiments.variants import Variant, parse_variants


def is_reported(study: Study, options: RunOptions, config: Config) -> bool:
    """Whether all that the options ask for is done, and its report is newer; if in doubt it is not."""
    root = options.directory
    if options.extend or options.dry_run or options.prepare or options.data_file or not study.variants:
        return False
    try:
        if not _holds(read_comparison(root), study, options, config) or not _is_newest(root):
            return False
        check_free(root)
    except (ValueError, OSError):  # no comparison, a damaged one or another's: whoever goes on says so
        return False
    return True


def _holds(there: Comparison, study: Study, options: RunOptions, config: Config) -> bool:
    rates = sorted(map(float, options.learning_rates.split(","))) if options.learning_rates else []
    seeds = get_preset(options.preset, study).seeds if options.seeds is None else options.seeds
    variants = parse_variants(options.variants or ",".join(study.variants))
    recorded = {variant.name: variant.settings for variant in there.variants}
    return (
        (there.study, asdict(Config()) | there.config) == (study.name, asdict(config))
        and sorted(there.learning_rates) == rates
        and {*range(seeds)} <= {*there.seeds}
        and options.baseline in (None, there.baseline)
        and all(_is_as_recorded(each, recorded.get(each.name), bool(rates)) for each in variants)
        # Of what could not be measured, some may be there now.
        and all(note.startswith(CONTINUED) for note in there.notes)
        and all(is_finished(options.directory, *run, config.steps) for run in there.runs)
    )


def _is_as_recorded(variant: Variant, recorded: dict[str, Any] | None, is_tuned: bool) -> bool:
    """Whether a variant is in the record with its settings, and with its own learning rate if that is searched."""
    if recorded is None or (is_tuned and "learning_rate" not in recorded):
        return False
    found = {"learning_rate": recorded["learning_rate"]} if is_tuned else {}
    return recorded == found | dict(variant.settings)


def _is_newest(root: Path) -> bool:
    """Whether nothing that the report is made of was written after it."""
    sources = [root / "comparison.json", *root.glob("*.parquet")]
    for run in read_comparison(root).runs:
        sources += [path for path in run_directory(root, *run).glob("[!.]*.json*")]
    return (root / "report.html").stat().st_mtime_ns >= max(path.stat().st_mtime_ns for path in sources)
