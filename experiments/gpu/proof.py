"""The Triton kernels on this card against the definition in float64, setting by setting."""

import copy
from functools import partial

import torch

from experiments.gpu.step import Step
from linear_rope import EluPlusOne, FavorPlus, linear_attention

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def error(step: Step, kind: str, width: int, dtype: torch.dtype) -> float:
    """The largest of ‖x − exact‖ / ‖exact‖ of the output and the gradients."""
    heads, length = (1, 40) if step.rehearses else (4, 300)
    q, k, v = (torch.randn(2, heads, length, width, device=step.device, dtype=dtype) for _ in "qkv")
    feature_map = (FavorPlus(width, 2 * width) if kind == "favor+" else EluPlusOne()).to(step.device)
    found = []
    for form, wide in (("reference", torch.float64), ("triton", dtype)):
        leaves = [x.detach().to(wide).requires_grad_() for x in (q, k, v)]
        own = copy.deepcopy(feature_map).to(torch.float64 if form == "reference" else torch.float32)
        output = linear_attention(*leaves, feature_map=own, causal=True, implementation=form)
        found.append([output.detach(), *torch.autograd.grad(output, leaves, v.to(wide))])
    return max(float((x.double() - exact).norm() / exact.norm()) for exact, x in zip(*found, strict=True))


def main(step: Step) -> None:
    for kind in ("elu+1", "favor+"):
        for width in (16,) if step.rehearses else (64, 128):
            for dtype, tolerance in TOLERANCES.items():
                case = {"map": kind, "width": width, "dtype": str(dtype)}
                if not step.is_done(case):
                    found = step.attempt(case, "triton", partial(error, step, kind, width, dtype))
                    if found is not None:
                        step.write(case=case, error=found, proved=found < tolerance)


if __name__ == "__main__":
    main(Step.of_command())
