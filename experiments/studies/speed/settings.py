"""What the speed experiment measures: the names of the competitors, the sizes and the presets."""

from dataclasses import dataclass, replace

import torch

from experiments.records.strict_json import Length, Number, Positive

OURS, EQ_19, SDPA = "linear-rope", "linear-rope, eq. 19", "softmax (SDPA)"
PERFORMER, FAST_TRANSFORMERS, FLA = "performer-pytorch", "fast-transformers", "fla"
SGEMM = "sgemm"
NONE, BEFORE, AFTER, ELU = "favor+ none", "favor+ rope before", "favor+ rope after", "elu+1 rope after"
SOFTMAX = "softmax rope"
FORWARD, BACKWARD, STEP, TOKEN = "forward", "forward+backward", "step", "token"


def after(num_features: int) -> str:
    """The name of the module with RoPE after a map to this many features."""
    return f"{AFTER}, M={num_features}"


@dataclass(frozen=True)
class SpeedConfig:
    """The sizes that are measured, and how long."""

    lengths: tuple[Length, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    """N of the operation and the module"""
    heads: Positive = 8
    """H of the operation and the module"""
    head_dim: Positive = 64
    """D"""
    num_features: Positive = 256
    """M"""
    fewer_features: Positive = 128
    """a second M, for the module"""
    training_lengths: tuple[Length, ...] = (256, 512, 1024, 2048)
    """N of a training step"""
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
    """blocks of the language model"""
    dim: Positive = 256
    """width of the language model"""
    model_heads: Positive = 4
    """heads of the language model"""
    performer_gib: Number = 2.5
    """performer-pytorch is left out where its estimated memory is above this"""
    gemm_size: Positive = 2048
    """rows and columns of the matrices whose product gives the machine's sgemm rate"""
    threads: Positive = 2
    """CPU threads"""
    rounds: Positive = 11
    """rounds at most; each times every competitor once"""
    fewest_rounds: Positive = 5
    """rounds at least"""
    group_seconds: Number = 20.0
    """after this long a group of competitors begins no further round"""
    sample_seconds: Number = 0.1
    """a sample repeats its call for this long, or makes one"""
    precision: str = "float32"
    """dtype of the inputs; on CUDA bfloat16, which FlashAttention needs"""
    device: str = "cpu"
    """cpu or cuda"""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bfloat16" else torch.float32


_GPU = SpeedConfig(
    lengths=(512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
    training_lengths=(256, 512, 1024, 2048, 4096, 8192, 16384),
    position_lengths=(1024, 8192),
    performer_gib=40.0,
    gemm_size=8192,
)
PRESETS = {
    "smoke": SpeedConfig(
        lengths=(32, 64),
        heads=2,
        head_dim=8,
        num_features=16,
        fewer_features=8,
        training_lengths=(32,),
        position_lengths=(32,),
        position_rounds=3,
        position_seconds=0.0,
        contexts=(16, 32),
        memory_lengths=(32,),
        performer_contexts=(16,),
        layers=1,
        dim=32,
        model_heads=2,
        gemm_size=64,
        threads=1,
        rounds=3,
        fewest_rounds=3,
        group_seconds=0.0,
        sample_seconds=0.001,
    ),
    "cpu": SpeedConfig(),
    "gpu": _GPU,
    "paper": replace(_GPU, rounds=31, group_seconds=120.0),
}


def settings(preset: str, device: str) -> SpeedConfig:
    """The sizes of a preset on a device. On a GPU the preset for two processor cores is that for a GPU."""
    if device != "cuda":
        return PRESETS[preset]
    return replace(PRESETS["gpu" if preset == "cpu" else preset], precision="bfloat16", device="cuda")


def takes_flash_attention(config: SpeedConfig) -> bool:
    """Whether softmax attention can be FlashAttention, which takes no float32."""
    return config.device == "cuda" and config.precision == "bfloat16"
