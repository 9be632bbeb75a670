"""The Triton kernels on this card against their definition in float64, kind by kind, with any setting that is used."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from experiments.gpu.step import PROOFS, Step
from linear_rope.ops.linear.triton_form.proof import outcome_of
from linear_rope.ops.linear.triton_form.trial import Kind, Outcome, prove

SANITIZED = 2
"""kinds whose kernels run under compute-sanitizer: both maps"""


def kinds() -> Iterator[Kind]:
    """What is trained and timed first: with a decay, which has all that there is without one, and then without."""
    sizes = ("elu+1", 64, 64), ("favor+", 64, 128), ("elu+1", 128, 128), ("favor+", 128, 128)
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        yield from (kind(*size, dtype, decays=decays) for decays in (True, False) for size in sizes)
    for formula, width, features in (*sizes, ("relu", 64, 64)):
        yield kind(formula, width, features, rotated=False, denominator="shared")
        yield kind(formula, width, features, causal=False)
    for denominator in ("shared", "none"):
        yield kind("elu+1", 64, 64, denominator=denominator)
    yield kind("given", 64, 64, denominator="own", rotated=False, scaled=True)
    yield kind("favor+", 64, 128, hyperbolic=True)
    yield kind("elu+1", 64, 128, paired=True)


def kind(formula: str, width: int, features: int, dtype: torch.dtype = torch.bfloat16, **others: Any) -> Kind:
    usual: dict[str, Any] = dict.fromkeys(("hyperbolic", "paired", "scaled", "decays"), False)
    usual |= {"rotated": True, "denominator": "mapped", "causal": True}
    return Kind((dtype,) * 3, formula, width=width, features=features, values=width, **usual | others)


def main(step: Step) -> None:
    name, _, number = step.name.partition("-")
    is_kept = name == "proof" and not step.rehearses  # for "auto", in the steps to come
    chosen = list(kinds())[int(number) :: PROOFS] if name == "proof" else list(kinds())[:SANITIZED]
    if step.rehearses:  # what an interpreter has least to do for
        chosen = [kind("elu+1", 16, 16, torch.float32, rotated=False, denominator="none")]

    def outcome(each: Kind) -> Outcome | None:
        return outcome_of(each, step.device, may_prove=True) if is_kept else prove(each, step.device)

    for each in chosen:
        case = {"kind": str(each)}
        if not step.is_over and not step.is_done(case):
            found = step.attempt(case, "kernels", partial(outcome, each))
            if found is not None:
                step.write(case=case, proved=found.passed, errors=found.errors)


if __name__ == "__main__":
    main(Step.of_command())
