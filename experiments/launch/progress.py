"""What a running comparison shows: bars on a terminal or in a notebook, plain lines elsewhere."""

import time
from collections import deque
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from experiments.console import PLAIN_SECONDS, duration
from experiments.launch.launcher import Advanced, Ended, Event, Run, Started

ENOUGH_SECONDS = 10
"""of steps, before the time left is estimated from them"""
LONGEST_SECONDS = 60
"""that steps count for in the estimate: long enough to be steady, short enough to follow a change of variant"""


class Lines:
    """Plain lines: one when a run starts and ends, and one each quarter minute while it runs."""

    def __init__(self, console: Console, runs: list[Run], done: int, steps: int) -> None:
        self._console, self._runs, self._done, self._steps = console, len(runs), done, steps
        self._left = _TimeLeft(len(runs) - done, steps)
        self._printed: dict[Run, float] = {}

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, event: Event) -> None:
        self._left.follow(event)
        if isinstance(event, Ended):
            self._print(closing_line(event))
        elif isinstance(event, Started):
            self._printed[event.run] = time.monotonic()
            self._print(f"{event.run}: started")
        elif time.monotonic() - self._printed[event.run] >= PLAIN_SECONDS:
            self._printed[event.run] = time.monotonic()
            self._print(f"{event.run}: step {event.step}/{self._steps}, {rates(event)}; all runs: {self._left} left")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Bars(Lines):
    """A rich bar per running run and one for the whole, with loss, tokens per second and time left."""

    def __init__(self, console: Console, runs: list[Run], done: int, steps: int) -> None:
        super().__init__(console, runs, done, steps)
        self._width = max(len(str(run)) for run in runs)
        name, detail = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[detail]}"))
        self._progress = Progress(name, BarColumn(bar_width=24), TaskProgressColumn(), detail, console=console)
        self._tasks: dict[Run, TaskID] = {}
        self._all = self._progress.add_task("all runs".ljust(self._width), total=len(runs) * steps, detail="")
        self._show_all()

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        self._left.follow(event)
        if isinstance(event, Started):
            name = str(event.run).ljust(self._width)
            self._tasks[event.run] = self._progress.add_task(name, total=self._steps, detail="starting")
        elif isinstance(event, Advanced):
            self._progress.update(self._tasks[event.run], completed=event.step, detail=rates(event))
        else:
            self._done += 1
            self._progress.remove_task(self._tasks.pop(event.run))
            self._progress.console.print(closing_line(event), markup=False, highlight=False)
        self._show_all()

    def _show_all(self) -> None:
        completed = self._runs * self._steps - self._left.steps
        detail = f"{self._done} of {self._runs} ended, {self._left} left"
        self._progress.update(self._all, completed=completed, detail=detail)


def make_display(console: Console, runs: list[Run], done: int, steps: int) -> Lines:
    """A display for ``runs``, of which ``done`` will not run, and each has so many ``steps``."""
    notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # in which rich draws bars
    return (Bars if console.is_terminal or notebook else Lines)(console, runs, done, steps)


class _TimeLeft:
    """Time left, from the steps of the last minute, those of runs side by side added up.

    What a run did before it told of its first step (starting, resuming, the first evaluation) counts for nothing.
    """

    def __init__(self, runs: int, steps: int) -> None:
        self._steps_of_a_run = steps
        self.steps = runs * steps
        """steps that are left, those of failed runs not counted"""
        self._reached: dict[Run, int] = {}
        self._made = 0
        self._marks: deque[tuple[float, int]] = deque()

    def follow(self, event: Event) -> None:
        if isinstance(event, Started):
            return
        before = self._reached.get(event.run)
        reached = event.step if isinstance(event, Advanced) else self._steps_of_a_run
        self.steps -= reached - (before or 0)
        self._reached[event.run] = reached
        if isinstance(event, Ended):
            return
        self._made += 0 if before is None else max(0, reached - before)
        now = time.monotonic()
        self._marks.append((now, self._made))
        while len(self._marks) > 2 and self._marks[1][0] <= now - LONGEST_SECONDS:
            self._marks.popleft()

    def __str__(self) -> str:
        if not self._marks:
            return "unknown time"
        seconds, made = time.monotonic() - self._marks[0][0], self._made - self._marks[0][1]
        return duration(seconds / made * self.steps) if seconds >= ENOUGH_SECONDS and made else "unknown time"


def rates(event: Advanced) -> str:
    return f"loss {event.loss:.3f} nats/token, {event.tokens_per_second:,.0f} tokens/s"


def closing_line(event: Ended) -> str:
    return f"{event.run}: {event.state}" + (f" ({event.reason})" if event.reason else "")
