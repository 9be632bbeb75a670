"""The competitors of each topic of the speed experiment, and how each one is set up and called.

Axis names: B batch (1 throughout), N length.
"""

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.studies.speed.benchmark import keep_no_freed_memory, peak_memory
from experiments.studies.speed.operations import (
    Call,
    differentiated,
    operation,
    performer_bytes,
    softmax_backend,
    why_no_fast_transformers,
    why_no_fla,
)
from experiments.studies.speed.settings import (
    AFTER,
    BEFORE,
    ELU,
    EQ_19,
    FAST_TRANSFORMERS,
    FLA,
    NONE,
    OURS,
    PERFORMER,
    PRESETS,
    SDPA,
    SGEMM,
    SOFTMAX,
    SpeedConfig,
    after,
    takes_flash_attention,
)
from experiments.training.models import check_parameters_match
from linear_rope import CausalLM, LinearRoPEAttention, ModelConfig, SoftmaxRoPEAttention
from linear_rope.attention.softmax import KeyValueCache
from linear_rope.model import Block

POSITIONS = {NONE: "none", BEFORE: "rope-before", AFTER: "rope-after"}
ENCODINGS = {
    "softmax": ("none", "learned", "sinusoidal", "rope", "alibi"),
    "favor+": ("none", "learned", "sinusoidal", "rope before", "rope after"),
    "elu+1": ("none", "learned", "sinusoidal", "rope before", "rope after"),
}
"""of each kernel of the topic "positions", whose competitors are "<kernel> <encoding>\""""
WARM_UP = 16
"""tokens of the call that warms a process up before its memory is measured"""


def competitors(topic: str, length: int, config: SpeedConfig) -> list[str]:
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
    if config.device == "cuda" and config.lengths == PRESETS["gpu"].lengths:
        notes.append("On a GPU the presets cpu and gpu are the same: the sizes of the gpu preset.")
    if takes_flash_attention(config):
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
    return differentiated(direction, lambda: _autocast(config, module, x), inputs, torch.randn_like(x), x)


def _autocast(config: SpeedConfig, model: nn.Module, *inputs: Tensor) -> Tensor:
    with (
        softmax_backend(config),
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
    "operation": operation,
    "rate": operation,
    "module": _module,
    "training": _training,
    "positions": _positions,
    "decoding": _decoding,
}
