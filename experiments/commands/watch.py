"""The watch command: a table and the curves of a comparison while it runs, drawn again and again from its files alone.

So a run of another machine is shown as one of this.
"""

import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from statistics import fmean
from string import ascii_letters

import plotext
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.console import duration, make_console, printable
from experiments.objects import Run
from experiments.records.record import planned_runs, read_comparison, run_directory, run_rows, run_status
from experiments.records.schema import Comparison, MetricsRow
from experiments.run.signals import Stopped

COLOURS = "blue red green magenta cyan yellow bright_blue bright_red bright_green bright_magenta bright_cyan".split()
WIDE = 70
"""columns from which there is room for all that is known of a run"""
CURVES_HEIGHT, FEWEST_ROWS, MOST_REASONS = 14, 5, 3
FEW, LONGEST_INTERVALS = 120.0, 10
"""seconds, and intervals between rows, that a run may write nothing before it is called silent"""
ORDER = {"running": "", "failed": "red", "damaged": "red", "queued": "", "done": "green"}
"""states and their colours; what is of least interest comes last, and is left out first"""


@dataclass(frozen=True)
class RunProgress:
    """A run as its files have it at some time."""

    run: Run
    state: str
    """as in status.json, or "damaged" """
    reason: str | None = None
    step: int = 0
    newest: dict[str, float] = field(default_factory=dict)
    """metrics of the newest training row"""
    validation: dict[int, float] = field(default_factory=dict)
    """the primary metric on the validation split, by step"""
    seconds_per_step: float = nan
    """with evaluations, since it was last started"""
    seconds_left: float = nan
    silent: float = 0.0
    """seconds that a running run has written nothing for, if that is too long"""


@dataclass(frozen=True)
class Progress:
    """A comparison at some time."""

    root: Path
    comparison: Comparison
    runs: list[RunProgress]

    @property
    def counts(self) -> Counter[str]:
        """How many runs are in each state."""
        return Counter(run.state for run in self.runs)

    @property
    def has_ended(self) -> bool:
        return not self.counts["running"] + self.counts["queued"]

    @property
    def seconds_left(self) -> float:
        """Of all runs, as many at a time as now; not a number if that cannot be told."""
        running = [run for run in self.runs if run.state == "running" and run.seconds_per_step > 0]
        if not running:
            return nan
        steps = int(self.comparison.config["steps"])
        left = sum(steps - run.step for run in self.runs if run.state in ("running", "queued"))
        share = fmean(run.seconds_per_step for run in running) * left / len(running)
        return max(share, *(run.seconds_left for run in running), 0.0)

    @property
    def curves(self) -> dict[str, dict[int, float]]:
        """By variant the primary metric on the validation split, the mean of the seeds that have got to a step."""
        found = defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
        for each in self.runs:
            for step, value in each.validation.items():
                found[each.run.variant][step].append(value)
        return {name: {step: fmean(values[step]) for step in sorted(values)} for name, values in found.items()}


def look(directory: Path, now: float | None = None) -> list[Progress]:
    """How far the comparison is, and those in its directory: trials of learning rates, or of several data sets.

    Trials that have ended are left out. Raises ValueError if there is no comparison, or a record is damaged.
    """
    records = *directory.glob("comparison.json"), *sorted(directory.glob("*/comparison.json"))
    comparisons = {path.parent: read_comparison(path.parent) for path in records}
    trained = {root: comparison for root, comparison in comparisons.items() if comparison.variants}
    if not trained and read_comparison(directory):
        raise ValueError(f"{directory} trains nothing, so there is nothing to watch; give a comparison that does")
    now = time.time() if now is None else now
    found = [
        Progress(root, comparison, [_run(root, comparison, Run(*run), now) for run in planned_runs(root, comparison)])
        for root, comparison in trained.items()
    ]
    return [each for each in found if each.root == directory or not each.has_ended] or found


def _run(root: Path, comparison: Comparison, run: Run, now: float) -> RunProgress:
    directory, config = run_directory(root, *run), comparison.config
    try:
        status, rows = run_status(root, *run), run_rows(root, *run)
    except ValueError as error:
        return RunProgress(run, "damaged", str(error))
    train, metric = [row for row in rows if row.split == "train"], comparison.objective.metric
    each, steps, is_running = _seconds_per_step(train), int(config["steps"]), status.state == "running"
    step = steps if status.state == "done" else train[-1].step if train else 0
    written = [path.stat().st_mtime for name in ("status.json", "metrics.jsonl") for path in directory.glob(name)]
    quiet = now - max(written, default=now)
    longest = max(FEW, LONGEST_INTERVALS * each * max(config["log_every"], config["evaluate_every"]))
    return RunProgress(
        run,
        status.state,
        status.reason,
        step,
        train[-1].metrics if train else {},
        {row.step: row.metrics[metric] for row in rows if row.split == "validation" and metric in row.metrics},
        each,
        max(0.0, each * (steps - step) - quiet) if is_running else nan,
        quiet if is_running and quiet > longest else 0.0,
    )


def _seconds_per_step(train: list[MetricsRow]) -> float:
    """The mean since the run was last started, when its clock began anew; not a number before two rows."""
    since: list[tuple[int, float]] = []
    for row in train:
        seconds = row.metrics.get("seconds", nan)
        if since and not seconds > since[-1][1]:
            since = []
        since.append((row.step, seconds))
    return (since[-1][1] - since[0][1]) / (since[-1][0] - since[0][0]) if len(since) > 1 else nan


def watch(directory: Path, once: bool, every: float) -> int:
    """Show how far a comparison is until its runs have ended, every so many seconds. Returns the exit status.

    Raises ValueError if there is no comparison.
    """
    console, found = make_console(), look(directory)
    if once or not console.is_terminal:
        console.print(frame(found, console.width))
        return 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(frame(found, console.width, console.height), refresh=True)
                if all(progress.has_ended for progress in found):
                    return 0
                time.sleep(every)
                found = look(directory)
    except Stopped as stop:
        return 128 + stop.signal_number


def frame(found: list[Progress], width: int, height: int | None = None) -> RenderableType:
    """What is shown in so many columns, and lines: where these are few, what is of least interest is left out."""
    room = None if height is None else height // len(found)
    return Group(*(_comparison(progress, width, room) for progress in found))


def _comparison(progress: Progress, width: int, height: int | None) -> RenderableType:
    names = [variant.name for variant in progress.comparison.variants]
    letters = {
        name: Text(ascii_letters[index % len(ascii_letters)], COLOURS[index % len(COLOURS)])
        for index, name in enumerate(names)
    }
    curves = _curves(progress, letters, width)
    failed = [each for each in progress.runs if each.state in ("failed", "damaged")][:MOST_REASONS]
    reasons = [Text(printable(f"{each.run}: {each.reason}"), "red", overflow="ellipsis") for each in failed]
    # The head, the table's, what was left out, and a line for the cursor.
    taken = 5 + len(reasons) + (CURVES_HEIGHT + 2 if curves else 0)
    room = len(progress.runs) if height is None else max(FEWEST_ROWS, height - taken)
    shown = sorted(progress.runs, key=lambda each: [*ORDER].index(each.state))[:room]
    states = ", ".join(f"{count} {state}" for state, count in sorted(progress.counts.items()))
    left = "" if math.isnan(progress.seconds_left) else f"; about {duration(progress.seconds_left)} left"
    head = Text(f"{printable(str(progress.root))}: {states}{left}", "bold")
    left_out = [Text(f"and {len(progress.runs) - room} more", "dim")] if room < len(progress.runs) else []
    return Group(head, _table(progress, shown, letters, width), *left_out, *reasons, *curves)


def _table(progress: Progress, runs: list[RunProgress], letters: dict[str, Text], width: int) -> Table:
    steps, columns = int(progress.comparison.config["steps"]), 7 if width >= WIDE else 5
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(("", "run", "state", "step", "loss", "validation", "tokens/s")[:columns]):
        # A name that is too long is cut, and nothing else.
        table.add_column(name, no_wrap=name != "run", justify="right" if place > 2 else "left")
    for each in runs:
        cells = [
            letters[each.run.variant],
            Text(str(each.run), no_wrap=True, overflow="ellipsis"),
            _state(each),
            Text(f"{each.step}/{steps}" if width >= WIDE else str(each.step)),
            _number(each.newest.get("loss", nan)),
            _number(next(reversed(each.validation.values()), nan)),
            _number(each.newest.get("tokens_per_second", nan), ",.0f"),
        ]
        table.add_row(*cells[:columns])
    return table


def _state(each: RunProgress) -> Text:
    """What it is doing: of one that runs, for how long it will."""
    if each.silent:
        return Text(f"silent {duration(each.silent)}", "yellow")
    if each.state == "running" and not math.isnan(each.seconds_left):
        return Text(f"{duration(each.seconds_left)} left")
    return Text(each.state, ORDER[each.state])


def _number(value: float, form: str = ".3f") -> Text:
    return Text("" if math.isnan(value) else format(value, form))


def _curves(progress: Progress, letters: dict[str, Text], width: int) -> list[RenderableType]:
    """The validation curves, each drawn with its variant's letter; none as long as there are no two points."""
    curves = {variant: curve for variant, curve in progress.curves.items() if len(curve) > 1}
    if not curves:
        return []
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, CURVES_HEIGHT)
    for variant, curve in curves.items():
        figure.draw(figure.signal([*curve], [*curve.values()], marker=letters[variant].plain).lines())
    drawn = Text(figure.build().string(colorless=True).rstrip())
    for letter in letters.values():
        drawn.highlight_words([letter.plain], str(letter.style))
    return [Text(f"{progress.comparison.objective.quantity}, validation split, by step"), drawn]
