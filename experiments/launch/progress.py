"""What a running comparison shows: a bar per running run on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from experiments.launch.worker import Run

PLAIN_SECONDS = 15

T = TypeVar("T")


class Bars:
    """A rich bar per running run and one for the whole, with loss, tokens per second and time left."""

    def __init__(self, console: Console, runs: list[Run], done: int, steps: int) -> None:
        self._steps = steps
        self._runs = len(runs)
        self._width = max(len(str(run)) for run in runs)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            # The rate of a minute: long enough to be steady, short enough to follow a change of variant.
            speed_estimate_period=60,
        )
        self._tasks: dict[Run, TaskID] = {}
        self._steps_of: dict[Run, int] = {}
        self._done = done
        self._all = self._progress.add_task(
            "all runs".ljust(self._width),
            total=len(runs) * steps,
            completed=done * steps,
            detail=self._count(),
        )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def started(self, run: Run) -> None:
        self._tasks[run] = self._progress.add_task(str(run).ljust(self._width), total=self._steps, detail="starting")

    def advanced(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        detail = f"loss {loss:.3f} nats/token, {tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._tasks[run], completed=step, detail=detail)
        self._advance_all(run, step)

    def ended(self, run: Run, state: str, reason: str | None) -> None:
        self._done += 1
        self._advance_all(run, self._steps)
        self._progress.update(self._all, detail=self._count())
        self._progress.remove_task(self._tasks.pop(run))
        self._progress.console.print(_closing_line(run, state, reason), markup=False, highlight=False)

    def _advance_all(self, run: Run, step: int) -> None:
        self._progress.advance(self._all, step - self._steps_of.get(run, 0))
        self._steps_of[run] = step

    def _count(self) -> str:
        return f"{self._done} of {self._runs} ended"


class Lines:
    """Plain lines: one when a run starts and ends, and one each quarter minute while it runs."""

    def __init__(self, console: Console, runs: list[Run], done: int, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._estimate = _TimeLeft(len(runs) - done, steps)
        self._printed: dict[Run, float] = {}

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def started(self, run: Run) -> None:
        self._printed[run] = time.monotonic()
        self._print(f"{run}: started")

    def advanced(self, run: Run, step: int, loss: float, tokens_per_second: float) -> None:
        self._estimate.advanced(run, step)
        if time.monotonic() - self._printed[run] < PLAIN_SECONDS:
            return
        self._printed[run] = time.monotonic()
        self._print(
            f"{run}: step {step}/{self._steps}, loss {loss:.3f} nats/token, {tokens_per_second:,.0f} tokens/s; "
            f"all runs: {self._estimate} left"
        )

    def ended(self, run: Run, state: str, reason: str | None) -> None:
        self._estimate.advanced(run, self._steps)
        self._print(_closing_line(run, state, reason))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_display(console: Console, runs: list[Run], done: int, steps: int) -> Bars | Lines:
    """Bars on a terminal, lines elsewhere; ``done`` of the ``runs`` will not run, each has so many ``steps``."""
    return (Bars if console.is_terminal else Lines)(console, runs, done, steps)


class _TimeLeft:
    """Time left from the steps that this run has made so far, those of runs side by side added up."""

    def __init__(self, runs: int, steps: int) -> None:
        self._started = time.monotonic()
        self._total = runs * steps
        self._first: dict[Run, int] = {}
        self._last: dict[Run, int] = {}

    def advanced(self, run: Run, step: int) -> None:
        self._first.setdefault(run, step)
        self._last[run] = step

    def __str__(self) -> str:
        made = sum(self._last[run] - self._first[run] for run in self._last)
        if made <= 0:
            return "unknown time"
        return _shown((time.monotonic() - self._started) / made * (self._total - sum(self._last.values())))


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items, and print each quarter minute how many are done: "``what``: 12 of 60, 4 min left"."""
    started = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if now - printed >= PLAIN_SECONDS:
            printed = now
            with suppress(OSError):  # what is measured is more important than what is shown
                print(
                    f"{what}: {done} of {len(items)}, {_shown((now - started) / done * (len(items) - done))} left",
                    flush=True,
                )
        yield item


def _shown(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _closing_line(run: Run, state: str, reason: str | None) -> str:
    return f"{run}: {state}" + (f" ({reason})" if reason else "")
