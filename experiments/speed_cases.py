"""What the speed experiment measures: its sizes, the competitors of each topic, and how each one is set up and called.

Axis names: B batch (1 throughout), H heads, N length, D head dimension, M number of features, C chunk size.
"""

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.benchmark import keep_no_freed_memory, peak_memory
from experiments.models import check_parameters_match
from experiments.schema import Length, Number, Positive
from linear_rope import CausalLM, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention, linear_attention
from linear_rope.features import GivenFeatures
from linear_rope.model import Block
from linear_rope.softmax_attention import KeyValueCache

OURS, EQ_19, SDPA = "linear-rope", "linear-rope, eq. 19", "softmax (SDPA)"
PERFORMER, FAST_TRANSFORMERS, FLA = "performer-pytorch", "fast-transformers", "fla"
SGEMM = "sgemm"
NONE, BEFORE, AFTER, ELU = "favor+ none", "favor+ rope before", "favor+ rope after", "elu+1 rope after"
SOFTMAX = "softmax rope"
POSITIONS = {NONE: "none", BEFORE: "rope-before", AFTER: "rope-after"}
ENCODINGS = {
    "softmax": ("none", "learned", "sinusoidal", "rope", "alibi"),
    "favor+": ("none", "learned", "sinusoidal", "rope before", "rope after"),
    "elu+1": ("none", "learned", "sinusoidal", "rope before", "rope after"),
}
"""of each kernel of the topic "positions", whose competitors are "<kernel> <encoding>\""""

WARM_UP = 16
"""tokens of the call that warms a process up before its memory is measured"""

FORWARD, BACKWARD, STEP, TOKEN = "forward", "forward+backward", "step", "token"


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
    fewest_rounds: Positive = 3
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


class Call(NamedTuple):
    """A competitor, ready to be measured.

    Attributes:
        run: one call; what it returns can be dropped.
        returned_bytes: of the output and the gradients, which every competitor has to return.
        facts: what else is to be known about it.
    """

    run: Callable[[], object]
    returned_bytes: int = 0
    facts: dict[str, int] = {}  # noqa: RUF012 (a NamedTuple's default is never changed)


def competitors(topic: str, direction: str, length: int, config: SpeedConfig) -> list[str]:
    """Who is measured at this length, ours first."""
    if topic == "operation":
        names = [OURS, EQ_19, SDPA]
        if performer_bytes(length, config.heads, config) <= config.performer_gib * 2**30:
            names.append(PERFORMER)
        if why_no_fast_transformers(config) is None:
            names.append(FAST_TRANSFORMERS)
        if why_no_fla(config) is None:
            names.append(FLA)
        return names
    if topic == "module":
        return [after(config.num_features), after(config.fewer_features), BEFORE, NONE, ELU, SOFTMAX]
    if topic == "training":
        names = [AFTER, BEFORE, NONE, SOFTMAX]
        if performer_bytes(length, config.model_heads, config) * config.layers <= config.performer_gib * 2**30:
            names.append(PERFORMER)
        return names
    if topic == "positions":
        return [f"{kernel} {encoding}" for kernel, encodings in ENCODINGS.items() for encoding in encodings]
    return [AFTER, SOFTMAX] + [PERFORMER] * (length in config.performer_contexts)


def after(num_features: int) -> str:
    """The name of the module with RoPE after a map to this many features."""
    return f"{AFTER}, M={num_features}"


def build(topic: str, direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    """Set a competitor up. Its inputs are the same for equal sizes."""
    torch.manual_seed(0)
    if name == SGEMM:
        a, b = torch.randn(2, config.gemm_size, config.gemm_size, device=config.device)
        return Call(partial(torch.mm, a, b))
    return _TOPICS[topic](direction, name, length, config)


def memory_here(topic: str, direction: str, name: str, length: int, config: dict[str, Any]) -> dict[str, Any]:
    """The peak memory of a competitor; for a process of its own, to which this module can be sent quickly."""
    settings = SpeedConfig(**config)
    torch.set_num_threads(settings.threads)
    keep_no_freed_memory()
    build(topic, direction, name, min(WARM_UP, length), settings).run()
    call = build(topic, direction, name, length, settings)
    rise, method = peak_memory(call.run, torch.device(settings.device))
    return {"rise": rise, "returned": call.returned_bytes, "method": method}


def left_out(config: SpeedConfig) -> list[str]:
    """What a run with these settings does not measure, and why; a sentence each."""
    notes = []
    if config.device == "cuda" and config.lengths == _GPU.lengths:
        notes.append("On a GPU the presets cpu and gpu are the same: the sizes of the gpu preset.")
    if _takes_flash_attention(config):
        notes.append(
            "Softmax attention in the operation, the module and the training step is FlashAttention: "
            "scaled_dot_product_attention in bfloat16, held to that backend. Decoding is in float32, by the backend "
            "that PyTorch picks."
        )
    for topic, lengths, heads, layers in (
        ("The operation", config.lengths, config.heads, 1),
        ("The training step", config.training_lengths, config.model_heads, config.layers),
    ):
        needed = {length: layers * performer_bytes(length, heads, config) / 2**30 for length in lengths}
        too_large = {length: gib for length, gib in needed.items() if gib > config.performer_gib}
        if too_large:
            sizes = ", ".join(f"{gib:.0f} GiB at N = {length:,}" for length, gib in too_large.items())
            notes.append(
                f"{topic} of performer-pytorch is left out where it needs more than {config.performer_gib:g} GiB, by "
                f"an estimate of N·M·D float32 numbers a head and layer: {sizes}."
            )
    for name, why in (("pytorch-fast-transformers", why_no_fast_transformers(config)), ("fla", why_no_fla(config))):
        if why is not None:
            notes.append(f"{name} is not measured: {why}.")
    return notes


def performer_bytes(length: int, heads: int, config: SpeedConfig) -> int:
    """What performer-pytorch's causal path without compiled kernels keeps of one layer for its backward pass."""
    return 4 * heads * length * config.num_features * config.head_dim


def why_no_fast_transformers(config: SpeedConfig) -> str | None:
    """Why its kernel cannot be called here; None if it can."""
    try:
        from fast_transformers.causal_product import CausalDotProduct
    except ImportError as error:
        return f"not installed ({error})"
    if CausalDotProduct.dot[config.device] is None:
        return f"it was built without its {config.device} kernel"
    return None if config.precision == "float32" else "its kernels take float32 only"


def why_no_fla(config: SpeedConfig) -> str | None:
    """Why its kernel cannot be called here; None if it can."""
    if config.device != "cuda":
        return "its kernels need a GPU"
    try:
        from fla.ops.linear_attn import chunk_linear_attn  # noqa: F401
    except ImportError as error:
        return f"not installed ({error}); pip install fla-core"
    return None


def operation_flops(length: int, config: SpeedConfig, direction: str, chunk_size: int, *, dense: bool = False) -> int:
    """The fewest floating-point operations of chunked causal linear attention (the strict count), over all heads.

    A head's forward pass builds and reads a state, 4·N·M·D, and takes two products inside the chunks, of which only
    the pairs that the causal mask keeps are needed, (C + 1)/2 of C for a query: N·(C + 1)·(M + D). The backward pass
    costs twice that. Denominator, feature map and recomputation are not counted.

    Args:
        dense: count all C·C pairs of a chunk instead, 2·N·C·(M + D): what whole matrix products calculate.
    """
    chunk = min(chunk_size, length)
    pairs = length * chunk if dense else length * (chunk + 1) // 2
    features, width = config.num_features, config.head_dim
    forward = config.heads * (4 * length * features * width + 2 * pairs * (features + width))
    return forward if direction == FORWARD else 3 * forward


def _operation(direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    softmax = name == SDPA
    width = config.head_dim if softmax else config.num_features
    place: Any = {"device": config.device, "dtype": config.dtype}
    q, k = (torch.rand(1, config.heads, length, width, **place).requires_grad_() for _ in range(2))
    v = torch.randn(1, config.heads, length, config.head_dim, **place).requires_grad_()
    operation = _operations()[name]

    def forward() -> Tensor:
        with _softmax_backend(config):
            return operation(q, k, v)

    return _differentiated(direction, forward, [q, k, v], torch.randn_like(v), v)


def _operations() -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    given = GivenFeatures()
    return {
        OURS: partial(_ours, feature_map=given, rope="none"),
        EQ_19: partial(_ours, feature_map=given, rope="after"),
        SDPA: partial(F.scaled_dot_product_attention, is_causal=True),
        PERFORMER: _performer,
        FAST_TRANSFORMERS: _fast_transformers,
        FLA: _fla,
    }


def _ours(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return linear_attention(q, k, v, causal=True, **options)


def _performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from performer_pytorch.performer_pytorch import causal_linear_attention_noncuda

    output: Tensor = causal_linear_attention_noncuda(q, k, v)
    return output


def _fast_transformers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fast_transformers.causal_product import CausalDotProduct

    # Its kernel gives the numerator only; this denominator is the one of its attention layer.
    return CausalDotProduct.apply(q, k, v) / ((q * k.cumsum(-2)).sum(-1, keepdim=True) + 1e-6)


def _fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from fla.ops.linear_attn import chunk_linear_attn

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y, _ = chunk_linear_attn(q, k, v, scale=1.0, normalize=False)
    denominator = (q * k.cumsum(1)).sum(-1, keepdim=True)
    return (y / denominator).transpose(1, 2)


def _module(direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    dim = config.heads * config.head_dim
    options: Any = {"causal": True}
    if name == SOFTMAX:
        module: nn.Module = SoftmaxRoPEAttention(dim, config.heads, **options)
    elif name == ELU:
        module = LinearRoPEAttention(dim, config.heads, feature_map="elu+1", **options)
    else:
        kind, _, features = name.partition(", M=")
        rope: Any = {NONE: "none", BEFORE: "before", AFTER: "after"}[kind]
        module = LinearRoPEAttention(
            dim, config.heads, num_features=int(features or config.num_features), rope=rope, **options
        )
    module.to(config.device)
    x = torch.randn(1, length, dim, device=config.device, requires_grad=True)
    inputs = [x, *module.parameters()]
    return _differentiated(direction, lambda: _autocast(config, module, x), inputs, torch.randn_like(x), x)


def _differentiated(
    direction: str, forward: Callable[[], Tensor], inputs: list[Tensor], gradient: Tensor, output: Tensor
) -> Call:
    """The forward pass without a graph, or forward and backward; ``output`` is one of the output's size."""
    returned = output.numel() * output.element_size()
    if direction == FORWARD:
        return Call(torch.no_grad()(forward), returned)

    def run() -> object:
        y = forward()
        return y, torch.autograd.grad(y, inputs, gradient.to(y.dtype))

    return Call(run, returned + sum(x.numel() * x.element_size() for x in inputs))


def _takes_flash_attention(config: SpeedConfig) -> bool:
    return config.device == "cuda" and config.precision == "bfloat16"


def _softmax_backend(config: SpeedConfig) -> contextlib.AbstractContextManager[object]:
    """Within it PyTorch's softmax attention is FlashAttention or raises, where the settings allow FlashAttention."""
    if _takes_flash_attention(config):
        backend: contextlib.AbstractContextManager[object] = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
        return backend
    return contextlib.nullcontext()


def _autocast(config: SpeedConfig, model: nn.Module, *inputs: Tensor) -> Tensor:
    with (
        _softmax_backend(config),
        torch.autocast(config.device, dtype=config.dtype, enabled=config.precision == "bfloat16"),
    ):
        output: Tensor = model(*inputs)
    return output


def language_model(name: str, length: int, config: SpeedConfig) -> nn.Module:
    """The language model of a competitor; all have the same number of parameters."""
    if name == PERFORMER:
        return _performer_model(length, config)
    model_config = ModelConfig(
        vocab_size=256,
        dim=config.dim,
        layers=config.layers,
        heads=config.model_heads,
        num_features=config.num_features,
        attention="softmax" if name == SOFTMAX else "linear",
        position="rope-before" if name == SOFTMAX else POSITIONS[name],  # type: ignore[arg-type]
    )
    return CausalLM(model_config).to(config.device)


def _performer_model(length: int, config: SpeedConfig) -> nn.Module:
    from performer_pytorch import PerformerLM

    with contextlib.redirect_stdout(io.StringIO()):  # it prints a line a layer
        model: nn.Module = PerformerLM(
            num_tokens=256,
            max_seq_len=length,
            dim=config.dim,
            depth=config.layers,
            heads=config.model_heads,
            dim_head=config.dim // config.model_heads,
            causal=True,
            nb_features=config.num_features,
            feature_redraw_interval=None,
            tie_embed=True,
        )
    return model.to(config.device)


def _training(direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    model = language_model(name, length, config)
    parameters = sum(p.numel() for p in model.parameters())
    with torch.device("meta"):
        ours = language_model(AFTER, length, replace(config, device="meta"))
    check_parameters_match({name: (parameters, 0), AFTER: (sum(p.numel() for p in ours.parameters()), 0)})
    return _step(model, length, config)


def _positions(direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    """A training step of the language model; a learned table has a vector for each position, and so more parameters."""
    kernel, _, encoding = name.partition(" ")
    model_config = ModelConfig(
        vocab_size=256,
        dim=config.dim,
        layers=config.layers,
        heads=config.model_heads,
        max_length=length,
        num_features=config.num_features if kernel == "favor+" else None,
        attention="softmax" if kernel == "softmax" else "linear",
        feature_map="favor+" if kernel == "softmax" else kernel,
        position="rope-before" if encoding == "rope" else encoding.replace(" ", "-"),  # type: ignore[arg-type]
    )
    return _step(CausalLM(model_config).to(config.device), length, config)


def _step(model: nn.Module, length: int, config: SpeedConfig) -> Call:
    """A step of AdamW on one sequence."""
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(256, (1, length + 1), device=config.device)

    def step(length: int = length) -> None:
        optimizer.zero_grad()
        logits = _autocast(config, model, tokens[:, :length])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1 : length + 1].flatten()).backward()
        optimizer.step()

    # The optimiser makes its averages in its first step; they belong to the model, not to a step.
    step(min(length, 16))
    optimizer.zero_grad()
    return Call(step, 4 * parameters, {"parameters": parameters})


def _decoding(direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    model = language_model(name, length, config).eval()
    context = torch.randint(256, (1, length), device=config.device)
    if name == PERFORMER:
        from performer_pytorch.autoregressive_wrapper import AutoregressiveWrapper

        generate = AutoregressiveWrapper(model).generate
        return Call(lambda: generate(context, 1))
    assert isinstance(model, CausalLM)
    states = _caches(model, length, config) if name == SOFTMAX else _prefilled(model, context)
    token, position = context[:, -1:], torch.tensor([length], device=config.device)

    @torch.no_grad()
    def decode() -> Tensor:
        x = model.embedding(token, position)
        for block, state in zip(model.blocks, states, strict=True):
            assert isinstance(block, Block)
            x, _ = block.advance(x, state)
        return model.embedding.logits(model.norm(x))

    return Call(decode, facts={"state_bytes": sum(_bytes(state) for state in states)})


@torch.no_grad()
def _prefilled(model: CausalLM, context: Tensor) -> list[Any]:
    x = model.embedding(context, torch.arange(context.shape[1], device=context.device))
    states = []
    for block in model.blocks:
        assert isinstance(block, Block)
        x, state = block.advance(x, None)
        states.append(state)
    return states


def _caches(model: CausalLM, length: int, config: SpeedConfig) -> list[Any]:
    """Random keys and values: the time of a token depends on their number only, and a real prefill is quadratic."""
    width = config.dim // config.model_heads
    position = torch.tensor([length], device=config.device)
    caches = []
    for _ in model.blocks:
        k, v = torch.randn(2, 1, config.model_heads, length, width, device=config.device)
        caches.append(KeyValueCache(k, v, None, position))
    return caches


def _bytes(state: object) -> int:
    """Of all tensors in nested tuples."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(map(_bytes, state)) if isinstance(state, tuple) else 0


_TOPICS: dict[str, Callable[[str, str, int, SpeedConfig], Call]] = {
    "operation": _operation,
    "rate": _operation,
    "module": _module,
    "training": _training,
    "positions": _positions,
    "decoding": _decoding,
}
