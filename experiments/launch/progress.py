"""What a running comparison shows: a bar per running cell on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from experiments.launch.worker import Cell

PLAIN_SECONDS = 15

T = TypeVar("T")


class Bars:
    """A rich bar per running cell and one for the whole, with loss, tokens per second and time left."""

    def __init__(self, console: Console, cells: list[Cell], done: int, steps: int) -> None:
        self._steps = steps
        self._cells = len(cells)
        self._width = max(len(str(cell)) for cell in cells)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            # The rate of a minute: long enough to be steady, short enough to follow a change of arm.
            speed_estimate_period=60,
        )
        self._tasks: dict[Cell, TaskID] = {}
        self._steps_of: dict[Cell, int] = {}
        self._done = done
        self._all = self._progress.add_task(
            "all cells".ljust(self._width),
            total=len(cells) * steps,
            completed=done * steps,
            detail=self._count(),
        )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def started(self, cell: Cell) -> None:
        self._tasks[cell] = self._progress.add_task(str(cell).ljust(self._width), total=self._steps, detail="starting")

    def advanced(self, cell: Cell, step: int, loss: float, tokens_per_second: float) -> None:
        detail = f"loss {loss:.3f} nats/token, {tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._tasks[cell], completed=step, detail=detail)
        self._advance_all(cell, step)

    def ended(self, cell: Cell, state: str, reason: str | None) -> None:
        self._done += 1
        self._advance_all(cell, self._steps)
        self._progress.update(self._all, detail=self._count())
        self._progress.remove_task(self._tasks.pop(cell))
        self._progress.console.print(_closing_line(cell, state, reason), markup=False, highlight=False)

    def _advance_all(self, cell: Cell, step: int) -> None:
        self._progress.advance(self._all, step - self._steps_of.get(cell, 0))
        self._steps_of[cell] = step

    def _count(self) -> str:
        return f"{self._done} of {self._cells} ended"


class Lines:
    """Plain lines: one when a cell starts and ends, and one each quarter minute while it runs."""

    def __init__(self, console: Console, cells: list[Cell], done: int, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._estimate = _TimeLeft(len(cells) - done, steps)
        self._printed: dict[Cell, float] = {}

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def started(self, cell: Cell) -> None:
        self._printed[cell] = time.monotonic()
        self._print(f"{cell}: started")

    def advanced(self, cell: Cell, step: int, loss: float, tokens_per_second: float) -> None:
        self._estimate.advanced(cell, step)
        if time.monotonic() - self._printed[cell] < PLAIN_SECONDS:
            return
        self._printed[cell] = time.monotonic()
        self._print(
            f"{cell}: step {step}/{self._steps}, loss {loss:.3f} nats/token, {tokens_per_second:,.0f} tokens/s; "
            f"all cells: {self._estimate} left"
        )

    def ended(self, cell: Cell, state: str, reason: str | None) -> None:
        self._estimate.advanced(cell, self._steps)
        self._print(_closing_line(cell, state, reason))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_display(console: Console, cells: list[Cell], done: int, steps: int) -> Bars | Lines:
    """Bars on a terminal, lines elsewhere; ``done`` of the ``cells`` will not run, each has so many ``steps``."""
    return (Bars if console.is_terminal else Lines)(console, cells, done, steps)


class _TimeLeft:
    """Time left from the steps that this run has made so far, those of cells side by side added up."""

    def __init__(self, cells: int, steps: int) -> None:
        self._started = time.monotonic()
        self._total = cells * steps
        self._first: dict[Cell, int] = {}
        self._last: dict[Cell, int] = {}

    def advanced(self, cell: Cell, step: int) -> None:
        self._first.setdefault(cell, step)
        self._last[cell] = step

    def __str__(self) -> str:
        made = sum(self._last[cell] - self._first[cell] for cell in self._last)
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


def _closing_line(cell: Cell, state: str, reason: str | None) -> str:
    return f"{cell}: {state}" + (f" ({reason})" if reason else "")
