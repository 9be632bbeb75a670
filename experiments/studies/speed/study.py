"""What does linear attention with RoPE cost, beside softmax attention and the other implementations?

python -m experiments run speed

Its words, claims and targets are in TOML files; here are the names of the competitors and the sizes.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from experiments.records.schema import Number, Positive
from experiments.study import read_study

FOLDER = Path(__file__).parent
STUDY = read_study(FOLDER)

OURS, EQ_19, SDPA = "linear-rope", "linear-rope, eq. 19", "softmax (SDPA)"
PERFORMER, FAST_TRANSFORMERS, FLA = "performer-pytorch", "fast-transformers", "fla"
SGEMM = "sgemm"
NONE, BEFORE, AFTER, ELU = "favor+ none", "favor+ rope before", "favor+ rope after", "elu+1 rope after"
SOFTMAX = "softmax rope"
MODULES = (NONE, BEFORE, AFTER, ELU, SOFTMAX)
"""the names of our modules and language models: "<kernel> <position encoding>\""""
FORWARD, BACKWARD, STEP, TOKEN = "forward", "forward+backward", "step", "token"
DIRECTIONS = {
    **dict.fromkeys(("rate", "operation", "module"), (FORWARD, BACKWARD)),
    **dict.fromkeys(("training", "positions"), (STEP,)),
    "decoding": (TOKEN,),
}
"""of each topic; memory is measured in the last"""
ALL_LENGTHS = ("rate", "decoding")
"""topics whose lengths are all timed in the same rounds"""

Length = Annotated[int, Meta(ge=1, le=2**40)]
"""tokens of a sequence"""


def after(num_features: int) -> str:
    """The name of the module with RoPE after a map to this many features."""
    return f"{AFTER}, M={num_features}"


def kernel_and_position(name: str) -> tuple[str, str]:
    """Of such a name, as linear_rope calls them."""
    kernel, _, encoding = name.partition(" ")
    return kernel, "rope-before" if encoding == "rope" else encoding.replace(" ", "-")


@dataclass(frozen=True)
class SpeedConfig:
    """The sizes that are measured, and how long."""

    lengths: tuple[Length, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    """N of the operation and the module; likewise H, D, M, and a second M for the module"""
    heads: Positive = 8
    head_dim: Positive = 64
    num_features: Positive = 256
    fewer_features: Positive = 128
    training_lengths: tuple[Length, ...] = (256, 512, 1024, 2048)
    position_lengths: tuple[Length, ...] = (1024,)
    """N of a training step with each position encoding"""
    position_rounds: Positive = 31
    """rounds at most of these steps, whose differences are of a few percent"""
    position_seconds: Number = 120.0
    """after this long such a group begins no further round"""
    contexts: tuple[Length, ...] = (128, 512, 1024, 4096, 16384, 65536)
    """tokens before the one that is decoded"""
    memory_lengths: tuple[Length, ...] | None = None
    """the lengths at which memory is measured; all of them if None"""
    performer_contexts: tuple[Length, ...] = (128, 512, 1024)
    """the contexts at which performer-pytorch decodes: it computes the whole context anew for a token"""
    layers: Positive = 4
    """of the language model; likewise its width and heads"""
    dim: Positive = 256
    model_heads: Positive = 4
    performer_gib: Number = 2.5
    """performer-pytorch is left out where its estimated memory is above this"""
    gemm_size: Positive = 2048
    """rows and columns of the matrices whose product gives the machine's sgemm rate"""
    threads: Positive = 2
    rounds: Positive = 11
    """rounds at most; each times every competitor once"""
    fewest_rounds: Positive = 5
    group_seconds: Number = 20.0
    """after this long a group of competitors begins no further round"""
    sample_seconds: Number = 0.1
    """a sample repeats its call for this long, or makes one"""
    precision: str = "float32"
    """dtype of the inputs; on CUDA bfloat16, which FlashAttention needs"""
    device: str = "cpu"

    @property
    def takes_flash_attention(self) -> bool:
        """Whether softmax attention can be FlashAttention, which takes no float32."""
        return self.device == "cuda" and self.precision == "bfloat16"


def settings(preset: str, device: str) -> SpeedConfig:
    """The sizes of a preset on a device. On a GPU the preset for two processor cores is that for a GPU."""
    sizes = tomllib.loads((FOLDER / "presets.toml").read_text(encoding="utf-8"))
    name = "gpu" if (preset, device) == ("cpu", "cuda") else preset
    config = msgspec.convert((sizes["gpu"] if name == "paper" else {}) | sizes[name], SpeedConfig)
    return replace(config, precision="bfloat16", device="cuda") if device == "cuda" else config
