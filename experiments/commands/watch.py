"""The watch command: a table and the curves of a comparison while it runs, drawn again and again from its files."""

import math
import time
from pathlib import Path
from string import ascii_letters

import plotext
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.console import duration, make_console, printable
from experiments.judge.progress import Follower, Progress, RunProgress
from experiments.run.signals import Stopped

COLOURS = "blue red green magenta cyan yellow bright_blue bright_red bright_green bright_magenta bright_cyan".split()
WIDE = 70
"""columns from which there is room for all that is known of a run"""
CURVES_HEIGHT, FEWEST_ROWS, MOST_REASONS = 14, 5, 3


def watch(directory: Path, once: bool, every: float) -> int:
    """Show how far a comparison is until its runs have ended, every so many seconds. Returns the exit status.

    Raises ValueError if there is no comparison.
    """
    follower, console = Follower(directory), make_console()
    if once or not console.is_terminal:
        console.print(frame(follower.look(), console.width))
        return 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                found = follower.look()
                live.update(frame(found, console.width, console.height), refresh=True)
                if all(progress.has_ended for progress in found):
                    return 0
                time.sleep(every)
    except Stopped as stop:
        return 128 + stop.signal_number


def frame(found: list[Progress], width: int, height: int | None = None) -> RenderableType:
    """What is shown in so many columns, and lines: where these are few, what is of least interest is left out."""
    room = None if height is None else height // len(found)
    return Group(*(_comparison(progress, width, room) for progress in found))


def _comparison(progress: Progress, width: int, height: int | None) -> RenderableType:
    letters = {
        variant.name: (ascii_letters[index % len(ascii_letters)], COLOURS[index % len(COLOURS)])
        for index, variant in enumerate(progress.comparison.variants)
    }
    curves = _curves(progress, letters, width)
    failed = [run for run in progress.runs if run.state in ("failed", "damaged")]
    reasons = [Text(printable(f"{run}: {run.reason}"), "red", overflow="ellipsis") for run in failed[:MOST_REASONS]]
    # The head, the table's, what was left out, and a line for the cursor.
    taken = 5 + len(reasons) + (CURVES_HEIGHT + 2 if curves else 0)
    room = len(progress.runs) if height is None else max(FEWEST_ROWS, height - taken)
    order = ("running", "failed", "damaged", "queued", "done")
    shown = sorted(progress.runs, key=lambda run: order.index(run.state))[:room]
    parts: list[RenderableType] = [_head(progress), _table(progress, shown, letters, width)]
    if len(shown) < len(progress.runs):
        parts.append(Text(f"and {len(progress.runs) - len(shown)} more", "dim"))
    return Group(*parts, *reasons, *curves)


def _head(progress: Progress) -> Text:
    states = ", ".join(f"{count} {state}" for state, count in sorted(progress.counts.items()))
    left = "" if math.isnan(progress.seconds_left) else f"; about {duration(progress.seconds_left)} left"
    return Text(f"{printable(str(progress.root))}: {states}{left}", "bold")


def _table(progress: Progress, runs: list[RunProgress], letters: dict[str, tuple[str, str]], width: int) -> Table:
    steps, wide = int(progress.comparison.config["steps"]), width >= WIDE
    names = ["state", "step", "loss", *(["validation", "tokens/s"] if wide else [])]
    rows = []
    for run in runs:
        cells = [_state(run), Text(f"{run.step}/{steps}" if wide else str(run.step)), _number(run.loss)]
        rows.append([*cells, *([_number(run.metric), _number(run.tokens_per_second, ",.0f")] if wide else [])])
    taken = [max(map(len, (name, *column))) for name, *column in zip(names, *rows, strict=True)]
    room = max(1, width - 2 - sum(taken) - len(names))  # a name that is too long is cut, and nothing else
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("run", no_wrap=True)
    for name in names:
        table.add_column(name, no_wrap=True, justify="left" if name == "state" else "right")
    for run, cells in zip(runs, rows, strict=True):
        called = Text(str(run))
        called.truncate(room, overflow="ellipsis")
        table.add_row(Text(*letters[run.variant]), called, *cells)
    return table


def _state(run: RunProgress) -> Text:
    """What it is doing: of one that runs, for how long it will."""
    if run.silent:
        return Text(f"silent {duration(run.silent)}", "yellow")
    if run.state == "running" and not math.isnan(run.seconds_left):
        return Text(f"{duration(run.seconds_left)} left")
    return Text(run.state, {"done": "green", "failed": "red", "damaged": "red"}.get(run.state, ""))


def _number(value: float, form: str = ".3f") -> Text:
    return Text("" if math.isnan(value) else format(value, form))


def _curves(progress: Progress, letters: dict[str, tuple[str, str]], width: int) -> list[RenderableType]:
    """The validation curves, each drawn with its variant's letter; none as long as there are no two points."""
    curves = {variant: curve for variant, curve in progress.curves.items() if len(curve[0]) > 1}
    if not curves:
        return []
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, CURVES_HEIGHT)
    for variant, (steps, values) in curves.items():
        figure.draw(figure.signal(steps, values, marker=letters[variant][0]).lines())
    colours = dict(letters.values())
    drawn = Text()
    for line in figure.build().string(colorless=True).splitlines():
        inside = False  # of the frame
        for character in line:
            inside = inside or character in "│┤"
            drawn.append(character, colours.get(character) if inside else None)
        drawn.append("\n")
    drawn.rstrip()
    objective = progress.comparison.objective
    return [Text(f"{objective.quantity}, validation split, by step"), drawn]
