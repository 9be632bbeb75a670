"""What a running comparison shows: bars on a terminal or in a notebook, plain lines elsewhere."""

import time
from contextlib import suppress
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskProgressColumn, TextColumn

from experiments.console import PLAIN_SECONDS, duration
from experiments.objects import Run
from experiments.run.loop import Advanced, Ended, Event, Started

LONGEST_SECONDS = 60
"""that steps count for in the time left: long enough to be steady, short enough to follow a change of variant"""


class Display:
    """A bar per running run and one for all, or a line when a run starts and ends and each quarter minute between.

    The time left is estimated from the steps of the last minute, those of runs side by side added up. What a run did
    before it told of its first step (starting, resuming, the first evaluation) counts for nothing in it.
    """

    def __init__(self, console: Console, runs: list[Run], done: int, steps: int, unit: str = "nats") -> None:
        """Of ``runs``, of so many ``steps`` each, ``done`` will not run; the loss is in a ``unit``."""
        self._unit = unit
        notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # in which rich draws bars
        self._draws = console.is_terminal or notebook
        self._runs, self._done, self._steps = len(runs), done, steps
        self._width = max(len(str(run)) for run in runs)
        name, detail = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[detail]}"))
        columns = name, BarColumn(bar_width=24), TaskProgressColumn(), detail
        clock = time.monotonic
        self._progress = Progress(*columns, console=console, get_time=clock, speed_estimate_period=LONGEST_SECONDS)
        self._tasks: dict[Run, Task] = {}
        self._printed: dict[Run, float] = {}
        self._all = self._add_task("all runs", len(runs) * steps, done * steps)
        self._tell_of_all()

    def __enter__(self) -> "Display":
        if self._draws:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._draws:
            self._progress.stop()

    def show(self, event: Event) -> None:
        run, now = event.run, time.monotonic()
        if isinstance(event, Started) and event.lost:
            self._print(f"{run}: begun again where there is room, for its {event.lost} has ended")
        elif isinstance(event, Started):
            self._tasks[run], self._printed[run] = self._add_task(str(run), self._steps), now
            if not self._draws:
                self._print(f"{run}: started")
        elif isinstance(event, Advanced):
            task = self._tasks[run]
            made = max(0, event.step - task.completed) if task.completed else 1
            detail = rates(event.loss, event.tokens_per_second, self._unit)
            self._all.completed += event.step - task.completed - made
            self._progress.update(self._all.id, advance=made)
            self._progress.update(task.id, completed=event.step, detail=detail)
            if not self._draws and now - self._printed[run] >= PLAIN_SECONDS:
                self._printed[run] = now
                self._print(f"{run}: step {event.step}/{self._steps}, {detail}; all runs: {self._time_left()}")
        else:
            # Of which a launcher may have forgotten to tell that it started.
            task = self._tasks.pop(run) if run in self._tasks else self._add_task(str(run), self._steps)
            self._all.completed += self._steps - task.completed
            self._progress.remove_task(task.id)
            self._done += 1
            self._print(closing_line(event))
        self._tell_of_all()

    def _add_task(self, name: str, total: int, completed: int = 0) -> Task:
        self._progress.add_task(name.ljust(self._width), total=total, completed=completed, detail="starting")
        return self._progress.tasks[-1]

    def _tell_of_all(self) -> None:
        self._progress.update(self._all.id, detail=f"{self._done} of {self._runs} ended, {self._time_left()}")

    def _time_left(self) -> str:
        seconds = self._all.time_remaining
        # A clock can be set back.
        return "unknown time left" if seconds is None or seconds < 0 else f"{duration(seconds)} left"

    def _print(self, line: str) -> None:
        with suppress(OSError):  # of an output that goes nowhere, to a full disk say: the runs are more important
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def rates(loss: float, tokens_per_second: float, unit: str) -> str:
    return f"loss {loss:.3f} {unit}, {tokens_per_second:,.0f} tokens/s"


def closing_line(event: Ended) -> str:
    return f"{event.run}: {event.state}" + (f" ({event.reason})" if event.reason else "")
