"""Linear attention in Triton, on a GPU: of causal calls the same result and gradients as blockwise.py's.

Two kernels go through a sequence chunk by chunk and keep the states; all else is a program for each chunk, which maps,
rotates, weighs and sums what it needs by itself (forward.py and backward.py). Where every query sees every key there is
one state of all keys (bidirectional.py), and one position after a state, as in decoding, is one program
(one_position.py). Where pairs of features have decays of their own, pairs.py has both passes. What they share has a
file an idea: tiles.py, maps.py, rotation.py, terms.py, fading.py, state.py. The files launch*.py are the host's side.

Nothing here imports Triton before it is asked to compute. With TRITON_INTERPRET=1, set before Triton is imported, the
kernels run on a CPU, slowly, in NumPy.
"""

import importlib.util
import os

import torch
from torch import Tensor

from linear_rope.ops.linear.call import Call, Gradients, Result, Upstream


def takes(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernels compute in ``dtype``, that of a call, on a device."""
    if dtype != torch.float32 or importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or (device.type == "cpu" and _interprets())


def description() -> str:
    """Where the kernels run, and if nowhere, why not."""
    if importlib.util.find_spec("triton") is None:
        return 'not installed: pip install "linear-rope[triton]"'
    where = "CUDA, and on a CPU in its interpreter" if _interprets() else "CUDA (on a CPU with TRITON_INTERPRET=1)"
    return f"for float32, bfloat16 and float16 on {where}"


def _interprets() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def empty_result(call: Call, *, keep: bool) -> Result:
    """Memory for a result, with that for :func:`differentiate` if ``keep``."""
    from linear_rope.ops.linear.triton_form import launch, launch_pairs

    return (launch if call.pair_decay is None else launch_pairs).empty_result(call, keep=keep)


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    from linear_rope.ops.linear.triton_form import launch, launch_bidirectional, launch_one_position, launch_pairs

    if call.pair_decay is not None:
        return launch_pairs.attend(call, keep=keep)
    if not call.causal:
        return launch_bidirectional.attend(call, keep=keep)
    return launch_one_position.attend(call) if call.q.shape[2] == 1 and not keep else launch.attend(call, keep=keep)


def step(call: Call) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The output of one position, and the memory, normaliser and stabiliser after it."""
    result = attend(call, keep=False)
    normaliser = result.key_sum if call.has_denominator else None
    return result.output, result.memory, normaliser, result.stabiliser if call.has_scale else None


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward."""
    from linear_rope.ops.linear.triton_form import launch, launch_bidirectional, launch_pairs

    form = launch_bidirectional if not call.causal else launch if call.pair_decay is None else launch_pairs
    return form.differentiate(call, result, of)
