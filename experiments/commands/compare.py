"""``compare``: the run command, in a script or a notebook.

```python
from experiments import compare
result = compare(["softmax-rope", "elu+1-rope-after"], data="stdlib", steps=400, seeds=3)
result.plot("validation")
```
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.commands.flow import run_plan
from experiments.commands.plan import data_sets_of, make_plan
from experiments.comparison import Comparison, load
from experiments.options import ALL, BENCHMARK, as_words, run_options
from experiments.run.signals import Stopped


def compare(
    variants: str | Sequence[str],
    *,
    experiment: str = "convergence",
    preset: str = "cpu",
    data: str | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    **config: Any,
) -> Comparison:
    """Train and measure variants, as the command ``run`` does: same directory, and what is done is not repeated.

    Args:
        variants: names, as the command ``list`` shows them.
        experiment: the study.
        preset: smoke, cpu, gpu or paper; gives what is not given here.
        data: the data set; None is the preset's.
        seeds: how many; None is the preset's.
        out: the comparison's directory; None is results/runs/EXPERIMENT.
        **config: any other option of ``run``, with underscores: ``steps=400``, ``learning_rates=[1e-3, 2e-3]``.

    Returns:
        The comparison, also if some of its runs failed.

    Raises:
        ValueError: a wrong argument; nothing was written.
        RuntimeError: it began and could not go on.
        KeyboardInterrupt: it was stopped; the same call goes on from the last checkpoints.
    """
    given = {"variants": variants, "preset": preset, "data": data, "seeds": seeds, "out": out, **config}
    options = run_options(experiment, given, ("run", experiment, *as_words(given)), origin="")
    if options.study in (ALL, BENCHMARK) or options.dry_run:
        raise ValueError("compare makes one comparison; run all, run benchmark and --dry-run are for the command line")
    if of_data := data_sets_of(options):
        raise ValueError(
            f"data is not given, and {experiment} is a comparison of each data set; give {' or '.join(of_data)}"
        )
    try:
        with the_script_is_not_imported_again():
            run_plan(make_plan(options))
    except Stopped as stop:
        raise KeyboardInterrupt(f"stopped by {stop}; the same call goes on from the last checkpoints") from None
    return load(options.directory)


@contextmanager
def the_script_is_not_imported_again() -> Iterator[None]:
    """Processes that measure would import the script that called us, and with it call us again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
