"""Whether this machine can run the suite, for the ``doctor`` command."""

import importlib
import os
import platform
import re
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import psutil

from experiments.commands.catalogue import availability
from experiments.config import Config
from experiments.console import (
    CHECKOUT,
    available_cores,
    in_checkout,
    install_command,
    make_console,
    print_pairs,
    say_that_it_loads,
)
from experiments.data.files import cache_directory, resolve_data_dir
from experiments.data.registry import DATA_SETS, load_data
from experiments.errors import EXIT_FAILED
from experiments.presets import PRESETS

PROJECT = "linear-rope"
OPTIONAL = {
    "tokenizers": ("texts", "run mlm, glue, long-documents, translation; --tokenizer bpe and wordpiece"),
    "scikit-learn": ("texts", "run glue of MRPC, QQP and CoLA"),
    "sacrebleu": ("texts", "run translation"),
    "torchdiffeq": ("floater", "run positions"),
}
"""by distribution, its extra and what needs it"""


def doctor(data_dir: Path | None = None, runs: Path = Path("results/runs")) -> int:
    """Print what this machine has, what is missing and which presets it can run; never raises for what it examines.

    ``runs`` is where comparisons are written. Returns 0, or 1 when something that every run needs is missing.
    """
    problems: list[str] = []
    console = make_console()
    say_that_it_loads("doctor")
    devices, kernels = of_torch()
    sections = {
        "Machine": [
            ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
            ("cores", str(available_cores())),
            ("memory", f"{psutil.virtual_memory().total / 2**30:.1f} GiB"),
            ("CUDA", ", ".join(devices) or "no GPU that torch can use"),
            *((f"{name} kernel", what) for name, what in kernels.items()),
            ("cache directory", str(cache_directory())),
        ],
        "Packages": [(name, package(name, problems)) for name in requirements()],
        "For some studies": [(name, optional(name)) for name in OPTIONAL],
        "Data sets": data_sets(data_dir, problems),
        "Results": [(str(runs), writable(runs, problems))],
    }
    for title, pairs in sections.items():
        print_pairs(console, pairs, title)
        console.print()
    for problem in problems:
        console.print(f"Missing: {problem}", style="bold red", soft_wrap=True)
    if problems:
        console.print("This machine cannot run the experiments yet.", style="bold")
        return EXIT_FAILED
    of_gpu = f"{', '.join(PRESETS[2:-1])} and {PRESETS[-1]}"
    presets = f"smoke, cpu, {of_gpu}" if devices else f"smoke and cpu; {of_gpu} need a CUDA GPU"
    console.print(f"This machine can run the presets {presets}.", style="bold")
    return 0


def of_torch() -> tuple[list[str], dict[str, str]]:
    """The GPUs that torch can use, with their memory, and the kernels that run here; none where it cannot be loaded."""
    try:
        import torch

        from linear_rope import kernels
    except (ImportError, OSError):
        return [], {}
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"{device.name} ({device.total_memory / 2**30:.0f} GiB)" for device in devices], kernels()


def requirements() -> list[str]:
    """The distributions that every run needs: by the checkout, which may be newer than what was installed of it."""
    if in_checkout():
        setup = ConfigParser()
        setup.read(CHECKOUT / "setup.cfg", encoding="utf-8")
        asked_for = setup["options"]["install_requires"].split("\n")[1:]
    else:
        asked_for = metadata.requires(PROJECT) or []
    return [re.split("[^A-Za-z0-9._-]", text)[0] for text in asked_for if ";" not in text]


def package(name: str, problems: list[str]) -> str:
    """The version of a package, after importing it; a problem is noted if that fails."""
    try:
        importlib.import_module({"pillow": "PIL"}.get(name, name.lower().replace("-", "_")))
        return metadata.version(name)
    except (ImportError, OSError) as error:  # OSError: a shared library that it needs is not there
        remedy = f"pip install -c constraints.txt -e . in {CHECKOUT}" if in_checkout() else f"pip install {name}"
        problems.append(f"the package {name} ({error}); run {remedy}")
        return "missing"


def optional(name: str) -> str:
    """The version of a package that some studies need, or which these are and how it is installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        extra, needs_it = OPTIONAL[name]
        return f"missing, needed by {needs_it}: {install_command(extra)}"


def data_sets(data_dir: Path | None, problems: list[str]) -> list[tuple[str, str]]:
    """Where every data set is; the default one is loaded, because a run without options needs it."""
    resolved = None
    try:
        resolved = resolve_data_dir(data_dir)
        load_data(Config().data, data_dir)
    except ValueError as error:
        problems.append(str(error))
    return [(name, availability(data_set, resolved)) for name, data_set in DATA_SETS.each()]


def writable(directory: Path, problems: list[str]) -> str:
    """Whether ``directory`` can be written or, if it does not exist, made. Writes nothing."""
    nearest = next(parent for parent in (directory.absolute(), *directory.absolute().parents) if parent.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return "can be written"
    problems.append(f"a place for results: {directory} cannot be written; change its permissions or give --out DIR")
    return "cannot be written"
