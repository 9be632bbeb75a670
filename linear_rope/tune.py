"""Measures how fast the Triton kernels are on this machine's GPU with other chunks, warps and stages than are built in.

    python -m linear_rope.tune [ROW ...] [--out FILE]

Each candidate is proved on the card before it is measured. The fastest of each row goes into a table in the user's
cache directory, where the kernels look first from then on, for other calls of that size too.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from linear_rope.ops.linear import triton_form
from linear_rope.ops.linear.call import Upstream
from linear_rope.ops.linear.triton_form import kept, proof, settings, trial
from linear_rope.ops.linear.triton_form.settings import Launch

ROWS = {
    "elu+1-64": ("elu+1", 64, 64),
    "favor+-64": ("favor+", 64, 128),
    "elu+1-128": ("elu+1", 128, 128),
    "favor+-128": ("favor+", 128, 128),
}
"""formula, width of heads and features"""
SIZE = 16, 16, 4096
"""sequences, heads and positions"""
Timer = Callable[[Callable[[], Any]], float]
"""the milliseconds that a function takes"""


class Tuned(NamedTuple):
    """Attributes:
    row: of the table.
    before: milliseconds of a forward and a backward pass with ``was``; None where that is not proved.
    after: with ``best``; None where nothing is proved.
    """

    row: str
    was: Launch
    before: float | None
    best: Launch
    after: float | None

    def __str__(self) -> str:
        if self.after is None:
            return "nothing is proved"
        before, ratio = "not proved", ""
        if self.before is not None:
            before, ratio = f"{self.before:.3f} ms", f", {self.before / self.after:.2f} times as fast"
        return f"before {before} ({_words(self.was)}), after {self.after:.3f} ms ({_words(self.best)}){ratio}"


def _words(launch: Launch) -> str:
    return ", ".join(f"{name} {x}" for name, x in launch._asdict().items())


def kind_of_row(name: str) -> trial.Kind:
    """Calls in bfloat16, with RoPE after the map and the unrotated denominator."""
    formula, *widths = ROWS[name]
    width, features = map(settings.tile, widths)
    dtypes = (torch.bfloat16,) * 3
    return trial.Kind(dtypes, formula, False, False, True, "mapped", False, False, True, width, features, width)


def candidates(now: Launch) -> Iterator[Launch]:
    """What is tried, beginning with the settings of today."""
    yield now
    for chunk in (16, 32, 64, 128):
        for warps in (now.warps, (4,) * 5, (8,) * 5):
            for stages in (1, 2, 3):
                yield now._replace(chunk=chunk, warps=warps, stages=stages)


def tune(name: str, device: torch.device, timer: Timer, size: tuple[int, int, int] = SIZE) -> Tuned:
    """Prove and measure the candidates of a row, of which the best is what calls are launched with from here on."""
    kind = kind_of_row(name)
    of_each = torch.randn(4, *size, kind.width, device=device).bfloat16()
    grad, leaves = of_each[3], dict(zip("qkv", of_each, strict=False))
    call, table = trial.call_of(kind, leaves), settings.tuned(device)
    row, was = kind.size.row, settings.launch_of(kind.size, device)

    def run() -> None:
        result = triton_form.attend(call, keep=True)
        triton_form.differentiate(call, result, Upstream(grad))

    times: dict[Launch, float] = {}
    for launch in dict.fromkeys(candidates(was)):
        table[row] = launch
        outcome = proof.outcome_of(kind, device, may_prove=True)
        if outcome is not None and outcome.passed:
            times[launch] = timer(run)
    table[row] = best = min(times, key=times.__getitem__, default=was)
    return Tuned(row, was, times.get(was), best, times.get(best))


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m linear_rope.tune", description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--out", type=Path, help="the table; default: where the kernels look for it")
    options = parser.parse_args(arguments)
    if unknown := [row for row in options.rows if row not in ROWS]:
        parser.error(f"there is no row {unknown[0]}; choose from {', '.join(ROWS)}")
    device = torch.device("cuda")
    if not torch.cuda.is_available() or not triton_form.takes(torch.float32, device):
        print(f"tune needs a CUDA GPU and Triton; the kernels are {triton_form.description()}", file=sys.stderr)
        return 2
    from triton.testing import do_bench

    device = torch.device("cuda", torch.cuda.current_device())
    out = options.out or kept.directory() / settings.TUNED
    for name in options.rows or ROWS:
        tuned = tune(name, device, lambda run: float(do_bench(run, return_mode="median")))
        print(f"{name}: {tuned}", flush=True)
        if tuned.after is not None:
            kept.add(out, settings.card(device), {tuned.row: tuned.best._asdict()})
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
