"""What the suite offers, for the ``list`` and ``data`` commands."""

from pathlib import Path

from experiments.config import Config
from experiments.console import make_console, print_pairs, program
from experiments.data.corpus import DataSet
from experiments.data.files import DATA_DIR_VARIABLE, cache_directory, resolve_data_dir
from experiments.data.registry import DATA_SETS
from experiments.options import DataOptions, ListOptions
from experiments.presets import PRESETS, get_preset
from experiments.studies.registry import STUDIES
from experiments.variants import get_variant, variant_names


def list_all(options: ListOptions) -> int:
    """Print the studies, presets, variants and data sets. Returns the exit status."""
    console = make_console()
    console.print(f"Studies: {program()} run NAME", style="bold underline")
    print_pairs(console, ((name, getattr(study, "question", str(study))) for name, study in STUDIES.each()))
    console.print("\nPresets: --preset NAME", style="bold underline")
    print_pairs(console, ((name, get_preset(name).description) for name in PRESETS))
    console.print("\nVariants: --variants NAME,NAME,...", style="bold underline")
    print_pairs(console, ((name, _described(name)) for name in variant_names()))
    console.print(f"\nData sets: --data NAME ({program()} data says which are here)", style="bold underline")
    print_pairs(console, ((name, getattr(data_set, "description", str(data_set))) for name, data_set in DATA_SETS.each()))
    return 0


def _described(variant: str) -> str:
    try:
        return get_variant(variant).description
    except ValueError as error:
        return str(error)


def availability(data_set: DataSet | str, data_dir: Path | None) -> str:
    """Where a data set (of ``DATA_SETS.each``) is, or what would bring it here. ``data_dir`` as resolved."""
    if isinstance(data_set, str):
        return data_set
    try:
        place = data_set.find(data_dir)
    except ValueError as error:
        return f"not usable: {error}"
    return f"not here: {data_set.when_missing}" if place is None else f"here: {place}"


def list_data(options: DataOptions) -> int:
    """Print every data set with where it is, or where it would come from. Reads and downloads nothing.

    Returns the exit status. Raises ValueError if the data directory does not exist.
    """
    console = make_console()
    resolved = resolve_data_dir(options.data_dir)
    directory = f"none (give --data-dir or set {DATA_DIR_VARIABLE})" if resolved is None else str(resolved)
    print_pairs(console, [("data directory", directory), ("cache directory", str(cache_directory()))])
    for name, data_set in DATA_SETS.each():
        default = " (default)" if name == Config().data else ""
        console.print(f"\n{name}{default}", style="bold")
        lines = [("where", availability(data_set, resolved))]
        if isinstance(data_set, DataSet):
            lines.insert(0, ("what", data_set.description))
            lines += [] if data_set.url is None else [("source", data_set.url)]
        print_pairs(console, lines)
    return 0
