"""What the suite offers, for the ``list`` and ``data`` commands."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

from experiments.config import Config
from experiments.console import install_command, make_console, print_pairs, program
from experiments.data.files import DATA_DIR_VARIABLE, DataSet, cache_directory, resolve_data_dir
from experiments.data.registry import DATA_SETS
from experiments.presets import PRESETS, get_preset
from experiments.studies.registry import STUDIES
from experiments.variants import get_variant, variant_names

NEEDS = {"floater": ("torchdiffeq", "floater")}
"""by position, the module that it cannot do without, and its extra"""


def list_all() -> int:
    """Print the studies, presets, variants and data sets, those last that cannot run here. Returns the exit status."""
    console, place = make_console(), resolve_data_dir(None)
    variants = {name: _described(name) for name in variant_names()}
    data_sets = {
        name: (getattr(found, "description", str(found)), availability(found, place).startswith("here"))
        for name, found in DATA_SETS.each()
    }
    for title, rows in {
        f"Studies: {program()} run NAME": [
            (name, getattr(each, "question", str(each))) for name, each in STUDIES.each()
        ],
        "Presets: --preset NAME": [(name, get_preset(name).description) for name in PRESETS],
        "Variants: --variants NAME,NAME,...": _those(variants, True),
        "Variants that cannot run here": _those(variants, False),
        "Data sets: --data NAME": _those(data_sets, True),
        f"Data sets not here ({program()} data: how to get them)": _those(data_sets, False),
    }.items():
        if rows:
            print_pairs(console, rows, title)
            console.print()
    return 0


def _those(described: dict[str, tuple[str, bool]], here: bool) -> list[tuple[str, str]]:
    return [(name, text) for name, (text, is_here) in described.items() if is_here == here]


def _described(name: str) -> tuple[str, bool]:
    """What a variant is, or why it cannot run here, and whether it can."""
    try:
        variant = get_variant(name)
    except ValueError as error:
        return str(error), False
    module, extra = NEEDS.get(variant.position, ("sys", ""))
    if find_spec(module) is None:
        return f"needs {module}: {install_command(extra)}", False
    return variant.description, True


def availability(data_set: DataSet | str, data_dir: Path | None) -> str:
    """Where a data set (of ``DATA_SETS.each``) is, or what would bring it here. ``data_dir`` as resolved."""
    if isinstance(data_set, str):
        return data_set
    try:
        place = data_set.find(data_dir)
    except ValueError as error:
        return f"not usable: {error}"
    return f"not here: {data_set.when_missing}" if place is None else f"here: {place}"


def list_data(data_dir: Path | None) -> int:
    """Print every data set: where it is or would come from, its licence and size, and the commands that fetch it.

    Reads and downloads nothing, but checks what was downloaded before. Returns the exit status. Raises ValueError if
    the data directory does not exist.
    """
    console = make_console()
    resolved = resolve_data_dir(data_dir)
    directory = (
        f"none (give --data-dir or set {DATA_DIR_VARIABLE}); DIR below stands for it"
        if resolved is None
        else str(resolved)
    )
    print_pairs(console, [("data directory", directory), ("cache directory", str(cache_directory()))])
    for name, data_set in DATA_SETS.each():
        default = " (default)" if name == Config().data else ""
        console.print(f"\n{name}{default}", style="bold")
        lines = [("where", availability(data_set, resolved))]
        if isinstance(data_set, DataSet):
            lines.insert(0, ("what", data_set.description))
            lines += [("licence", data_set.licence), ("size", data_set.size)]
            lines += [] if data_set.fetch else [("source", data_set.url or "")]
        print_pairs(console, [(what, text) for what, text in lines if text])
        if isinstance(data_set, DataSet) and data_set.fetch:
            console.print("  fetched by")
            for command in data_set.fetch:
                # Not folded: what is copied has to work.
                console.print(f"    {_placed(command, resolved)}", soft_wrap=True)
    return 0


def _placed(command: str, data_dir: Path | None) -> str:
    """A command of ``DataSet.fetch``, its address on a line of its own; DIR stays where there is no data directory."""
    if data_dir is not None:
        command = command.replace("DIR/", f"{shlex.quote(str(data_dir))}/")
    return re.sub(r" ('?https?:)", r" \\\n      \1", command)
