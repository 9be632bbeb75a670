"""Console output: the name that the program was called by, its console, and text that is safe on one line."""

import math
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.text import Text

LONGEST_MESSAGE = 3000
CHECKOUT = Path(__file__).parents[1]
"""where the project's files are, if it was not installed from a wheel"""
PLAIN_SECONDS = 15
"""between two lines on the same thing, where there are no bars"""

T = TypeVar("T")


def program() -> str:
    """How this program was called or, of a script that uses it, can be: for messages and records."""
    called = Path(sys.argv[0])
    is_module = called.match("experiments/__main__.py") or (called.stem != "linear-rope" and in_checkout())
    return "python -m experiments" if is_module else "linear-rope"


def in_checkout() -> bool:
    return (CHECKOUT / "constraints.txt").is_file()


def install_command(extra: str) -> str:
    """How an extra of setup.cfg is installed."""
    here = f'-c constraints.txt -e ".[{extra}]" in {CHECKOUT}'
    return f"pip install {here}" if in_checkout() else f'pip install "linear-rope[{extra}]"'


def say_that_it_loads(what: str, stream: TextIO | None = None) -> None:
    """Print a line before PyTorch is imported, which takes seconds, so that nobody waits for a sign of life.

    ``stream`` is standard output unless that is for a text alone.
    """
    if "torch" not in sys.modules:
        print(f"{what}: loading PyTorch ...", file=stream, flush=True)
        import numpy  # noqa: F401  # PyTorch imports it where the exception of a signal would be lost


class _Console(Console):
    """Shows what a terminal would act on as its escape, tabs too: a path that is copied has to be that path."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str("\n".join(map(_escaped, text.split("\n"))), **options)


def make_console() -> Console:
    """A console that prints text as it is (paths may hold brackets), without styles or a guessed width in a pipe."""
    make = partial(_Console, markup=False, emoji=False, highlight=False)
    console = make()
    return console if console.is_terminal or console.is_jupyter else make(width=120)


def print_pairs(console: Console, pairs: Iterable[tuple[str, str]], title: str = "") -> None:
    """Two columns under a title: a name, and text that wraps beside it."""
    rows = [(_escaped(name), _escaped(text)) for name, text in pairs]
    wide = max((len(name) for name, _ in rows), default=0) + 4
    width = max(20, console.width - wide)
    shown = [Text(_escaped(title), "bold underline")] if title else []
    for name, text in rows:  # rich's tables, or a call for each row, take half of the time of `list`
        beside = f"\n{' ' * wide}".join(textwrap.wrap(text, width, break_on_hyphens=False))
        shown.append(Text.assemble((f"  {name}".ljust(wide), "bold"), beside))
    console.print(Text("\n").join(shown), soft_wrap=True)


def printable(message: str) -> str:
    """The message on one line: nothing that a terminal would act on, and nothing endless (an argument may be that)."""
    line = _escaped(" ".join(message.split()))
    line = re.sub(r"\S{400,}", lambda word: f"{word[0][:150]}...{word[0][-50:]}", line)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]}..."


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def command_line(words: Iterable[str]) -> str:
    """The command of some words, as a shell takes it."""
    return shlex.join([*program().split(), *words])


def available_cores() -> int:
    """A container or a batch system often lets a process use fewer than the machine has; not every system can say."""
    counted = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(counted, cpu_quota())))


def cpu_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """How many cores' time the control groups (version 2) of this process may take; infinite without a limit."""
    limits, path = [math.inf], own.read_text().rpartition("0::/")[2].strip() if own.exists() else ""
    group = groups / path  # in a container it may not be there, but the top one is
    for each in (group, *group.parents):
        if each.is_relative_to(groups) and (each / "cpu.max").exists():
            quota, period = (each / "cpu.max").read_text().split()
            limits.append(math.inf if quota == "max" else int(quota) / int(period))
    return min(limits)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def many(count: int, what: str) -> str:
    """So many of them, as "1 run" or "2,400 runs"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def counted(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items, and print each quarter minute how many are done: "``what``: 12 of 60, 4 min left"."""
    started = printed = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done and now - printed >= PLAIN_SECONDS:
            printed = now
            left = duration((now - started) / done * (len(items) - done))
            with suppress(OSError):  # what is measured is more important than what is shown
                print(f"{what}: {done} of {len(items)}, {left} left", flush=True)
        yield item
