"""What figures of lines and of dots have in common: names, looks, and what is said above the panels."""

from statistics import mode
from textwrap import fill
from typing import Any

import pandas as pd
from matplotlib.figure import Figure as Picture

from experiments.judge.statistics import SMALLEST_SAMPLE
from experiments.show.axes import LETTER
from experiments.show.keys import Figure, Quantity
from experiments.show.rows import Rows
from experiments.show.style import MUTED, kernel_style, label, legend_label, look_of, variant_style

LETTERS = 11
"""of an axis' name in an inch"""
LETTERS_OF_A_ROW = 60
"""of a name beside a row of dots, which goes on in a second line"""
OWN_LOOK = ("variant", "encoding", "without_length")
"""columns by which a line looks as its variant does, also in other figures"""
DOTTED, DASHED = (0, (1, 2)), (0, (4, 2))
BESIDE_MEANS = ("seeds", "range", "band")
"""what is of all finished seeds at each place"""
INTERVAL = "Mark: mean; bar: 95 % interval (Student's t)."
NOTES = {
    ("lines", "seeds"): "Thin: each seed. Thick: mean of those that finished.",
    ("lines", "range"): "Line: mean; band: least to largest of the seeds.",
    ("lines", "band"): "Line: mean; band: 95 % interval (Student's t).",
    ("lines", "interval"): INTERVAL,
    ("lines", "marks"): INTERVAL,
    ("dots", "seeds"): "Small dots: seeds; marker: mean; line: 95 % interval (Student's t).",
}
"""what the marks are, by kind and spread"""
ONE_SEED = "One seed: no mean, no interval."


class Drawing:
    """A figure with its rows, by quantity; ``picture`` of its kind draws it."""

    def __init__(
        self, figure: Figure, quantities: dict[str, Quantity], found: dict[str, pd.DataFrame], rows: Rows
    ) -> None:
        self.figure, self.rows, self.quantities = figure, rows, quantities
        self.found = {name: self._told(name, part) for name, part in found.items()}
        self.names = self._names() if figure.line == "variant" else {}
        # What is to be said of most, where something is to be said of all, is said once, at the head.
        lost = [rows.failures.get(name, "") for name in rows.variants if figure.uses_data]
        self.lost_by_most = mode(lost) if len(lost) > 1 and all(lost) else ""

    def _told(self, name: str, part: pd.DataFrame) -> pd.DataFrame:
        """The rows of a quantity, and whether each is of a run that is finished."""
        done: Any = True
        if self.quantities[name].source == "runs":
            finished = {(variant, seed) for variant, seeds in self.rows.finished.items() for seed in seeds}
            done = [run in finished for run in zip(part["variant"], part["seed"], strict=True)]
        return part.assign(quantity=name, done=done)

    def _names(self) -> dict[str, str]:
        """What each variant is called: without what its panel's title says."""
        columns = {"kernel": ["encoding", "named"], "base": ["setting"]}.get(self.figure.panel, ["base", "named"])
        facts = self.rows.facts.set_index("variant")[columns]
        return {str(each): ", ".join(filter(None, told)) for each, *told in facts.itertuples()}

    def text(self, value: Any) -> str:
        """The name of a line, or of a row of dots; whether it was submitted, and how many of its runs failed."""
        if self.figure.line != "variant":
            return legend_label(str(value))
        told = fill(label(self.names.get(value, str(value)), 2 * LETTERS_OF_A_ROW), LETTERS_OF_A_ROW)
        variant = self.rows.variants.get(value)
        marks = ["submitted"] if variant and variant.submitted else []
        marks += [lost] if (lost := self.rows.failures.get(value)) and lost != self.lost_by_most else []
        return f"{told}\n({', '.join(marks)})" if marks else told

    def wrapped(self, text: str, inches: float) -> str:
        """The name of an axis of this length."""
        return "\n".join(fill(line, int(LETTERS * inches)) for line in self.rows.filled(text).split("\n"))

    def looks(self, values: pd.DataFrame) -> dict[Any, dict[str, Any]]:
        """A look for each value of the column of lines: a variant's own, or one of a list, the same in every panel."""
        line = self.figure.line
        if "kernel" in values and "variant" not in values:  # competitors, which nobody trained
            first = values.drop_duplicates(line)[[line, "kernel", "position"]].to_numpy()
            return {value: kernel_style(kernel, position) for value, kernel, position in first}
        if line in OWN_LOOK or (line == "pair" and self.figure.kind == "dots"):  # of a pair the first variant's
            first = values.drop_duplicates(line)[[line, "variant"]].to_numpy()
            return {
                value: variant_style(self.rows.variants[name])
                | ({"markerfacecolor": "white"} if line == "without_length" and "@" in value else {})
                for value, name in first
                if name in self.rows.variants
            }
        return {value: look_of(place) for place, value in enumerate(values[line].dropna().unique())}

    def finish(self, picture: Picture, more: str = "") -> Picture:
        """The line at the head: what the data are, what the marks are, and ``more``."""
        spread = NOTES.get((self.figure.kind, self.figure.spread), "")
        seeds = len(self.rows.comparison.seeds)
        if self.figure.spread in BESIDE_MEANS and seeds == 1:
            spread = ONE_SEED
        elif "interval" in spread and 0 < seeds < SMALLEST_SAMPLE:
            spread += " Below three seeds there is none."
        if self.figure.uses_data:
            names = label(", ".join(data.called for data in self.rows.comparison.data), longest=60)
            lost = self.lost_by_most and f"Runs, where nothing else is said: {self.lost_by_most}."
            note = " ".join(filter(None, [self.rows.filled(self.figure.note), spread, lost]))
            lines = f"{names}, {note}{more}".split("\n")
            text = "\n".join(fill(line, int(picture.get_figwidth() / LETTER)) for line in lines)
            picture.suptitle(text, x=0.01, ha="left", fontsize=9, color=MUTED)
        return picture
