"""What does linear attention with RoPE cost, beside softmax attention and the other implementations?

python -m experiments run speed

Its words, claims and targets are in TOML files; here are the names of the competitors and the sizes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from experiments.presets import size_of
from experiments.records.schema import Number, Positive
from experiments.study import read_study, read_toml
from experiments.variants import Variant, get_variant

FOLDER = Path(__file__).parent
STUDY = read_study(FOLDER)
PRESETS = read_toml(FOLDER / "presets.toml")

OURS, EQ_19, SDPA = "linear-rope", "linear-rope, eq. 19", "softmax (SDPA)"
CHUNKED = ", chunked"
"""behind the name of one of ours: without the kernel in C++"""
PERFORMER, FAST_TRANSFORMERS, FLA = "performer-pytorch", "fast-transformers", "fla"
SGEMM, COPY = "sgemm", "copy"
"""what the machine can do: a product of two large matrices, and on a GPU a copy of one"""
NONE, BEFORE, AFTER, ELU = "favor+ none", "favor+ rope before", "favor+ rope after", "elu+1 rope after"
SOFTMAX = "softmax rope"
FORWARD, BACKWARD, STEP, TOKEN = "forward", "forward+backward", "step", "token"
DECODING, BUSY = "decoding", "decoding beside a busy process"
DIRECTIONS = {
    **dict.fromkeys(("rate", "operation", "mapped", "module"), (FORWARD, BACKWARD)),
    **dict.fromkeys(("training", "positions", "decays"), (STEP,)),
    **dict.fromkeys((DECODING, BUSY), (TOKEN,)),
}
"""of each topic; memory is measured in the last"""

DECAYS = {
    f"{rope}{setting}": rope
    for rope, settings in {
        SOFTMAX: ("", "@decay=gate"),
        BEFORE: ("", "@decay=fixed"),
        ELU: ("", "@decay=fixed", "@decay=gate", "@decay=gate@local_conv=4"),
    }.items()
    for setting in settings
} | {"elu+1 selective after": ELU}
"""what is compared with its own kernel with RoPE alone, and that"""

Length = Annotated[int, Meta(ge=1, le=2**40)]
"""tokens of a sequence"""


def after(num_features: int) -> str:
    """The name of the module with RoPE after a map to this many features."""
    return f"{AFTER}, M={num_features}"


def compared_with(topic: str, name: str) -> str | None:
    """Of a position encoding its kernel without, of a decay its kernel with RoPE alone; None for other topics."""
    return DECAYS.get(name) if topic == "decays" else f"{name.partition(' ')[0]} none" if topic == "positions" else None


def variant(name: str) -> Variant:
    """Of the name of one of our modules or language models."""
    return get_variant(name.replace(" ", "-"))


@dataclass(frozen=True)
class SpeedConfig:
    """The sizes that are measured, and how long; presets.toml describes them."""

    lengths: tuple[Length, ...]
    heads: Positive
    head_dim: Positive
    num_features: Positive
    fewer_features: Positive
    training_lengths: tuple[Length, ...]
    position_lengths: tuple[Length, ...]
    position_rounds: Positive
    position_seconds: Number
    contexts: tuple[Length, ...]
    performer_contexts: tuple[Length, ...]
    layers: Positive
    dim: Positive
    model_heads: Positive
    performer_gib: Number
    gemm_size: Positive
    threads: Positive
    rounds: Positive
    fewest_rounds: Positive
    group_seconds: Number
    sample_seconds: Number
    topics: tuple[str, ...] | None = None
    """what is measured; None for all but decoding beside a busy process"""
    memory_lengths: tuple[Length, ...] | None = None
    """the lengths at which memory is measured; all of them if None"""
    precision: str = "float32"
    """dtype of the inputs; on CUDA bfloat16, which FlashAttention needs"""
    device: str = "cpu"

    def measures(self, topic: str) -> bool:
        return topic != BUSY if self.topics is None else topic in self.topics

    @property
    def takes_flash_attention(self) -> bool:
        """Whether softmax attention can be FlashAttention, which takes no float32."""
        return self.device == "cuda" and self.precision == "bfloat16"


def settings(preset: str, device: str) -> SpeedConfig:
    """The sizes of a preset on a device, whatever its recipe. On a GPU that for two processor cores is that for a GPU.

    Raises ValueError that lists those there are.
    """
    size = size_of(preset)
    name = "gpu" if (size, device) == ("cpu", "cuda") else size
    if name not in PRESETS:
        raise ValueError(f"--preset is {preset}, which speed does not have; choose from {', '.join(PRESETS)}")
    sizes = PRESETS["cpu"] | (PRESETS["gpu"] if name == "paper" else {}) | PRESETS[name]
    config = msgspec.convert(sizes, SpeedConfig)
    return replace(config, precision="bfloat16", device="cuda") if device == "cuda" else config
