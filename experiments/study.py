"""A study: a question, what is trained and measured for it, and how that is shown. It is what ``run NAME`` names.

Nothing heavy is imported here, nor by a study's own study.py: what a study does is named, and imported when it is done.
"""

import pkgutil
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.config import read_toml as read_toml

if TYPE_CHECKING:
    import pandas as pd

Part = str | Callable[..., Any]
"""a function, or ``"package.module:name"`` of one, which is imported at its first use"""


@dataclass(frozen=True)
class FigureEntry:
    """A saved figure: ``<stem>.png`` and ``<stem>.svg`` of the figures folder, and the words beside it."""

    stem: str
    title: str
    caption: str
    uses_data: bool = True
    """whether it shows something of the comparison's data; what is to know of them stands above all figures then"""


@dataclass(frozen=True)
class TableEntry:
    """A table that a study adds to its report; every cell is shown as its string."""

    title: str
    table: "pd.DataFrame"
    caption: str
    uses_data: bool = True
    """as of a figure"""


Entries = list[FigureEntry | TableEntry]
"""what a report shows of a study, in reading order"""


@dataclass(frozen=True, eq=False)
class Study:
    """A question and all that answers it. ``{NAME}`` in its words stands for a constant of the module ``constants``."""

    name: str
    question: str
    """what it asks"""
    method: str
    """how it is measured"""
    not_shown: str
    """what it does not show"""
    measure: Part
    """(root, comparison, objective) -> sentences on what could not be measured: measures the trained models, into CSV
    files of ``root``. Of a study that trains nothing: a sentence for each failure"""
    figures: Sequence[Mapping[str, Any]] = ()
    tables: Sequence[Mapping[str, Any]] = ()
    quantities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """what it shows: entries of show/keys.py"""
    headline: Sequence[str] = ()
    """sentences of its answer, with fields of show/words.py; one drops out if a number in it is not there"""
    measured: str = ""
    """what the answer is about, where that is no test metric; the data's names follow"""
    main_figure: str = ""
    """the stem of the figure that stands beside the answer where there are no curves, or scripts are off; of a
    comparison that has no such figure it is the first one"""
    variants: Sequence[str] = ()
    """those it trains by default (of study.toml as ``expanded``); none: it trains nothing, and has ``settings``,
    ``missing`` and ``notes``"""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """its own presets: what differs from the general one of that name (presets.py). None: the general ones. One that
    has ``of_data`` runs on each of these data sets: what differs for it, by its name"""
    shared: Mapping[str, Any] = field(default_factory=dict)
    """settings that its presets have in common, besides those that they say themselves"""
    recipe: str = ""
    """the recipe of presets.toml that its models are trained by; none: what its presets say, and else Config"""
    table_note: str = ""
    """what else has to be said below the main table"""
    overview: Sequence[Mapping[str, Any]] = ()
    overview_figures: Sequence[Mapping[str, Any]] = ()
    """what stands on the page over several comparisons: tables and figures, entries of show/keys.py"""
    asks: Part | None = None
    """(comparison) -> what it asks; empty: the study's question"""
    claims: Path | Part | Sequence[Any] = ()
    """``judge.claims.Claim``s, or the TOML file that lists them (``judge.claims.load_claims``)"""
    primary: Collection[str] = ()
    """the keys of those that answer its question: they are on the page of claims"""
    samples: str = ""
    """the module whose functions make samples for that file, besides judge/samples.py"""
    constants: str = ""
    """the module whose names stand in braces in its words"""
    all_records: bool = False
    """whether claims are about single records of training, all of which are then packed"""
    rebuilt: Mapping[str, Part] = field(default_factory=dict)
    """tables that a report makes of other files, (root) -> table, by the name of their file; they are not packed"""
    words: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """"text": what stands in braces in others; and by the value of a figure's or table's ``each`` words for that"""
    settings: Part | None = None
    """(preset, device) -> what it measures, a frozen dataclass"""
    missing: Part | None = None
    """(root, settings) -> the measurements still to make"""
    notes: Part | None = None
    """(root, settings) -> sentences about what is not part of it and what failed, as things are now"""

    def asked(self, comparison: Any) -> str:
        """What a comparison asks."""
        return (resolve(self.asks)(comparison) if self.asks else "") or self.said(self.question)

    def said(self, text: str, **values: Any) -> str:
        """A text of the study with its constants, the texts of its words, and these values, filled in."""
        constants = vars(import_module(self.constants)) if self.constants else {}
        return fill(text, {**constants, **self.words.get("text", {}), **values})


def resolve(part: Part | None) -> Callable[..., Any]:
    """The function that a part of a study is, or names."""
    assert part is not None
    found: Callable[..., Any] = pkgutil.resolve_name(part) if isinstance(part, str) else part
    return found


def read_study(directory: Path) -> Study:
    """The study of a folder, which has its name with _ for -.

    study.toml has its fields and its words, and beside ``presets`` what these set: ``sizes`` has a row for each
    setting, with a value for each preset ("" where it sets none), ``of_data`` what a preset has of that name;
    claims.toml, if there is one, its claims; the measure.py of a study of this package its function ``measure``, what
    its claims take samples with, and the constants in its words.
    """
    fields: dict[str, Any] = {}
    if (directory / "claims.toml").exists():
        fields["claims"] = directory / "claims.toml"
    if directory.parent == Path(__file__).parent / "studies" and (directory / "measure.py").exists():
        module = f"experiments.studies.{directory.name}.measure"
        fields |= {"measure": f"{module}:measure", "samples": module, "constants": module}
    fields |= read_toml(directory / "study.toml")
    fields["variants"] = expanded(fields.get("variants", ()))
    sizes, of_data = fields.pop("sizes", {}), fields.pop("of_data", {})
    for place, (name, preset) in enumerate(fields.get("presets", {}).items()):
        preset |= {key: row[place] for key, row in sizes.items() if row[place] != ""}
        preset |= {"of_data": of_data[name]} if name in of_data else {}
    return Study(directory.name.replace("_", "-"), **fields)


def expanded(patterns: Sequence[str]) -> list[str]:
    """The names that patterns as ``"{softmax,elu+1}-{none,rope}"`` stand for, the last alternatives varying first."""
    parts = [[part.split(",") for part in re.split(r"[{}]", pattern)] for pattern in patterns]
    return ["".join(name) for alternatives in parts for name in product(*alternatives)]


def fill(text: str, names: Mapping[str, Any]) -> str:
    """The text with every ``{name}`` replaced, also where what replaces one has some itself."""
    filled = text.format_map(names)
    return filled if filled == text else fill(filled, names)
