"""What the suite offers, for the ``list`` and ``data`` commands."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.config import Config
from experiments.data.corpus import DataSet
from experiments.data.files import DATA_DIR_VARIABLE, cache_directory, resolve_data_dir
from experiments.data.registry import DATA_SETS


def make_console() -> Console:
    """A console that prints text as it is (paths may hold brackets), without styles or a guessed width in a pipe."""
    console = Console(markup=False, emoji=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, emoji=False, highlight=False, width=120)


def print_pairs(console: Console, pairs: Iterable[tuple[str, str]]) -> None:
    """Two columns: a name, and text that wraps beside it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, text in pairs:
        grid.add_row(f"  {name}", text)
    console.print(grid)


def print_list(experiments: Mapping[str, str], presets: Iterable[str], variants: Mapping[str, str]) -> None:
    """Print the experiments and variants (name -> what it is), the presets and the names of the data sets."""
    console = make_console()
    console.print("Experiments: python -m experiments run NAME", style="bold underline")
    print_pairs(console, experiments.items())
    console.print("\nPresets: --preset NAME", style="bold underline")
    console.print(f"  {', '.join(presets)}")
    console.print("\nVariants: --variants NAME,NAME,...", style="bold underline")
    print_pairs(console, variants.items())
    console.print("\nData sets: --data NAME (python -m experiments data says which are here)", style="bold underline")
    print_pairs(console, ((data_set.name, data_set.description) for data_set in DATA_SETS.values()))


def availability(data_set: DataSet, data_dir: Path | None) -> str:
    """Where a data set is on this machine, or what would bring it here. ``data_dir`` as resolved."""
    try:
        place = data_set.find(data_dir)
    except ValueError as error:
        return f"not usable: {error}"
    return f"not here: {data_set.when_missing}" if place is None else f"here: {place}"


def print_data(data_dir: Path | None) -> None:
    """Print every data set with where it is, or where it would come from. Reads and downloads nothing.

    Raises ValueError if the data directory does not exist.
    """
    console = make_console()
    resolved = resolve_data_dir(data_dir)
    directory = f"none (give --data-dir or set {DATA_DIR_VARIABLE})" if resolved is None else str(resolved)
    print_pairs(console, [("data directory", directory), ("cache directory", str(cache_directory()))])
    for data_set in DATA_SETS.values():
        default = " (default)" if data_set.name == Config().data else ""
        console.print(f"\n{data_set.name}{default}", style="bold")
        lines = [("what", data_set.description), ("where", availability(data_set, resolved))]
        if data_set.url is not None:
            lines.append(("source", data_set.url))
        print_pairs(console, lines)
