"""What is printed while something long goes on."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

PLAIN_SECONDS = 15
"""between two lines on the same thing, where there are no bars"""

T = TypeVar("T")


def duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


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
