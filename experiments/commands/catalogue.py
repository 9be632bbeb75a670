"""What the suite offers, for the ``list`` and ``data`` commands."""

from pathlib import Path

from experiments.config import Config
from experiments.console import make_console, print_pairs, program
from experiments.data.corpus import DATA_DIR_VARIABLE, Task, cache_directory, resolve_data_dir
from experiments.data.registry import TASKS
from experiments.options import DataOptions, ListOptions
from experiments.presets import PRESETS
from experiments.variants import VARIANTS


def list_all(options: ListOptions) -> int:
    """Print the studies, presets, variants and data sets. Returns the exit status."""
    from experiments.studies.registry import STUDIES

    console = make_console()
    console.print(f"Studies: {program()} run NAME", style="bold underline")
    print_pairs(console, ((name, study.QUESTION) for name, study in STUDIES.items()))
    console.print("\nPresets: --preset NAME", style="bold underline")
    print_pairs(console, ((name, make().description) for name, make in PRESETS.items()))
    console.print("\nVariants: --variants NAME,NAME,...", style="bold underline")
    print_pairs(console, ((name, variant.description) for name, variant in VARIANTS.items()))
    console.print(f"\nData sets: --data NAME ({program()} data says which are here)", style="bold underline")
    print_pairs(console, ((task.name, task.description) for task in TASKS.values()))
    return 0


def availability(task: Task, data_dir: Path | None) -> str:
    """Where a data set is on this machine, or what would bring it here. ``data_dir`` as resolved."""
    try:
        place = task.find(data_dir)
    except ValueError as error:
        return f"not usable: {error}"
    return f"not here: {task.when_missing}" if place is None else f"here: {place}"


def list_data(options: DataOptions) -> int:
    """Print every data set with where it is, or where it would come from. Reads and downloads nothing.

    Returns the exit status. Raises ValueError if the data directory does not exist.
    """
    console = make_console()
    resolved = resolve_data_dir(options.data_dir)
    directory = f"none (give --data-dir or set {DATA_DIR_VARIABLE})" if resolved is None else str(resolved)
    print_pairs(console, [("data directory", directory), ("cache directory", str(cache_directory()))])
    for task in TASKS.values():
        default = " (default)" if task.name == Config().data else ""
        console.print(f"\n{task.name}{default}", style="bold")
        lines = [("what", task.description), ("where", availability(task, resolved))]
        if task.url is not None:
            lines.append(("source", task.url))
        print_pairs(console, lines)
    return 0
