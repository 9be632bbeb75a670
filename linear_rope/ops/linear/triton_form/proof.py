"""Proof on the GPU at hand, before "auto" takes the kernels.

Kernels that are right in Triton's interpreter can come out wrong on a card: a compiler chooses other instructions for
other sizes and warps. So each setting, which is all that changes the matrix products of what is compiled, is tried once
on each card, driver and version, when it is first wanted. The outcome is kept in the user's cache directory.
"""

import hashlib
import importlib.util
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

from linear_rope.ops.linear import triton_form
from linear_rope.ops.linear.triton_form import kept, settings, trial
from linear_rope.ops.linear.triton_form.trial import Kind, Outcome
from linear_rope.tracing import constant_in_graphs, driver_version, in_backward_pass, is_watched

FILE = "triton-proofs.json"
SWITCH = "LINEAR_ROPE_TRITON"

generation = "0"
"""changes when a setting has been proved; compiled code depends on it, and is compiled again"""
_decided: dict[tuple[Any, ...], bool] = {}


@constant_in_graphs
def holds(kind: tuple[Any, ...], device: torch.device, may_prove: bool, generation: str) -> bool:
    """Whether the setting for calls of a kind is proved on a device; where it is not known it is tried, if that may be.

    Compilers take the answer for a constant, until ``generation`` is another.
    """
    if os.environ.get(SWITCH) == "0":
        return False
    key = kind, device, settings.allows_tf32()
    if key not in _decided:
        outcome = outcome_of(Kind(*kind), device, may_prove=may_prove and _is_undisturbed(device))
        if outcome is None:
            return False
        _decided[key] = outcome.passed
        if outcome.passed:
            _begin_generation()
        elif outcome.errors:
            _warn(Kind(*kind), device, outcome.errors)
    return _decided[key]


def _begin_generation() -> None:
    global generation
    generation = str(int(generation) + 1)


def _is_undisturbed(device: torch.device) -> bool:
    """Whether nobody follows or records what is computed now, and autograd does not wait for it."""
    captured = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return not (captured or is_watched() or in_backward_pass())


def outcome_of(kind: Kind, device: torch.device, *, may_prove: bool) -> Outcome | None:
    """That of the file, or else of a trial; None where there is neither."""
    setting = _setting(kind, device)
    if setting is None:
        return Outcome(False, {})
    file, part = kept.directory() / FILE, environment(device)
    entry = kept.load(file).get(part, {}).get(setting)
    if entry is not None or not may_prove:
        return None if entry is None else Outcome(**entry)
    outcome = trial.prove(kind, device)
    if isinstance(outcome.errors, str):  # of memory that was short, say: another process may fare better
        return outcome
    try:
        kept.add(file, part, {setting: outcome._asdict()})
    except OSError as error:
        warnings.warn(f"what was proved of the Triton kernels cannot be kept: {error}", stacklevel=2)
    return outcome


def _setting(kind: Kind, device: torch.device) -> str | None:
    """The name of a setting: the kind, and how kernels are launched for it. None for what they do not compute."""
    # Of no tensors: function transforms and captured graphs would follow what is made here.
    if torch.float64 in kind.dtypes or not triton_form.takes(torch.float32, device):
        return None
    try:
        launch = settings.launch_of(kind.size, device)
    except ValueError:  # too wide
        return None
    precision = " tf32" if settings.allows_tf32() else ""
    return f"{kind}{precision} {' '.join(f'{name}={x}' for name, x in launch._asdict().items())}"


def _warn(kind: Kind, device: torch.device, errors: dict[str, float] | str) -> None:
    warnings.warn(
        f"the Triton kernels fail on {environment(device)} with {_setting(kind, device)}: {_told(kind, errors)}; "
        f'"auto" computes such calls by "chunked", in PyTorch. Remove {kept.directory() / FILE} to try again',
        stacklevel=3,
    )


def _told(kind: Kind, errors: dict[str, float] | str) -> str:
    if isinstance(errors, str):
        return errors
    told = ", ".join(f"{name} {x:.0e}" for name, x in errors.items())
    return "relative errors {} (at most {:g}, of gradients {:g})".format(told, *trial.tolerances(kind))


@cache
def environment(device: torch.device) -> str:
    """What a proof holds for."""
    driver = driver_version() if device.type == "cuda" else "none"
    capability = ".".join(map(str, settings.capability(device)))
    import triton  # whose distribution has several names

    versions = f"Triton {triton.__version__}, PyTorch {torch.__version__}"
    return f"{settings.card(device)} ({capability}), driver {driver}, {versions}, kernels {sources_sha256()[:12]}"


def sources_sha256() -> str:
    """Of the files in this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def description() -> str:
    """Of the GPUs of a process that uses some, for how many settings the kernels were proved; empty for another."""
    if importlib.util.find_spec("triton") is None or not torch.cuda.is_initialized():
        return ""
    devices = {torch.cuda.get_device_name(x): torch.device("cuda", x) for x in range(torch.cuda.device_count())}
    told = [f"{name}: {_counts(device)}" for name, device in devices.items()]
    if os.environ.get(SWITCH) == "0":
        told.append(f'not taken by "auto" ({SWITCH}=0)')
    return "; ".join(told)


def _counts(device: torch.device) -> str:
    outcomes = kept.load(kept.directory() / FILE).get(environment(device), {}).values()
    passed = sum(bool(x["passed"]) for x in outcomes)
    return f"{passed} proved, {len(outcomes) - passed} wrong"
