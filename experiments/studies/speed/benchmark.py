"""How time and memory are measured: competitors in turn, and peaks in a process of their own.

A machine's speed drifts by more than the differences that matter. So competitors are timed round robin: each round
times every one of them once, and what is compared is compared within a round.
"""

import contextlib
import ctypes
import gc
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from torch.utils.benchmark import Timer

Call = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)


def time_in_turn(
    calls: Mapping[Key, Call],
    *,
    threads: int,
    sample_seconds: float,
    rounds: int,
    fewest_rounds: int = 0,
    budget: float = math.inf,
) -> tuple[dict[Key, list[float]], dict[Key, str]]:
    """Seconds per call of every competitor, a value for each round; and why the others are missing.

    A competitor that raises is dropped, and the others go on. After a warm-up a sample repeats its call until it took
    ``sample_seconds``, and makes at least one. After ``budget`` seconds no further round begins, but ``fewest_rounds``.
    """
    timers = {key: Timer("call()", globals={"call": call}, num_threads=threads) for key, call in calls.items()}
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    failures: dict[Key, str] = {}
    begun = time.monotonic()
    for index in range(rounds):
        if index >= fewest_rounds and time.monotonic() - begun > budget:
            break
        for key in list(seconds):
            try:
                seconds[key].append(timers[key].blocked_autorange(min_run_time=sample_seconds).median)
            except Exception as error:
                failures[key] = reason(error)
                del seconds[key]
    return seconds, failures


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Within it another process multiplies matrices all the time, on one thread."""
    context = multiprocessing.get_context("spawn")
    has_begun = context.Event()
    process = context.Process(target=_multiply, args=(has_begun,), daemon=True)
    process.start()
    try:
        if not has_begun.wait(60):
            raise RuntimeError("the process that was to be busy did not begin within a minute")
        yield
        if not process.is_alive():
            raise RuntimeError("the process that was to be busy ended too early")
    finally:
        process.kill()
        process.join()


def _multiply(has_begun: Event) -> None:
    torch.set_num_threads(1)
    matrix = torch.ones(512, 512) / 512
    while True:
        matrix @ matrix
        has_begun.set()


def reason(error: Exception) -> str:
    """An exception in a line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` in a process that has done nothing else yet. Raises RuntimeError that says why not."""
    context: Any = multiprocessing.get_context("forkserver" if sys.platform.startswith("linux") else "spawn")
    # What each process imports, here once for all of them: its module, the command line, which is the main module,
    # and what an optimiser's first step imports.
    context.set_forkserver_preload([function.__module__, "experiments.cli", "torch._dynamo"])
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except Exception as error:
            raise RuntimeError(reason(error)) from error
        except BaseException:  # a stop does not wait for the measurement
            for process in multiprocessing.active_children():
                if process not in before:
                    process.kill()
            raise


def peak_memory(call: Call, device: torch.device) -> tuple[int, str]:
    """By how many bytes memory rises above what is there now, at the highest point of one call; and how that was read.

    For a process of its own: what earlier calls left in the allocator would hide a part of the rise.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, "torch.cuda.max_memory_allocated"
    _glibc("malloc_trim", 0)
    before = psutil.Process().memory_info().rss
    try:
        # Linux: 5 sets the peak of the resident memory back to what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        import resource  # which Windows has not

        call()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return max(0, peak - before), "ru_maxrss of a fresh process"
    call()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return max(0, int(status["VmHWM"].split()[0]) * 1024 - before), "VmHWM of a fresh process"


def keep_no_freed_memory() -> None:
    """Let glibc give every freed tensor back at once, so that resident memory is memory in use."""
    _glibc("mallopt", -3, 65536)  # M_MMAP_THRESHOLD


def _glibc(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    if function is not None:
        function(*arguments)
