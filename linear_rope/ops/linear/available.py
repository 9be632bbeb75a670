"""What computes linear attention on this machine."""

import torch

from linear_rope.ops.linear import native, triton_form
from linear_rope.ops.linear.triton_form import proof


def kernels() -> dict[str, str]:
    """What computes linear attention here, by the names that ``implementation`` takes.

    Returns:
        "native": the kernel in C++ and the processors that it was compiled for, or why there is none. The environment
        variable LINEAR_ROPE_NATIVE=0 switches it off. "triton": where the Triton kernels run, and of the GPUs of this
        machine for how many settings they were proved, so that "auto" takes them, and for how many they were found
        wrong; LINEAR_ROPE_TRITON=0 keeps "auto" from them. As in {"native": "C++ for x86-64-v3", "triton": "for
        float32, bfloat16 and float16 on CUDA (on a CPU with TRITON_INTERPRET=1); NVIDIA H200: 3 proved, 0 wrong",
        "chunked": "PyTorch 2.13.0, any device and dtype"}.
    """
    told = "; ".join(filter(None, (triton_form.description(), proof.description())))
    return {
        "native": native.description(),
        "triton": told,
        "chunked": f"PyTorch {torch.__version__}, any device and dtype",
    }
