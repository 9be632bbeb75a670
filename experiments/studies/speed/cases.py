"""The competitors of each topic of the speed study, and how each one is set up and called.

Axis names: B batch (1 throughout), H heads, N length, D head dimension, M number of features.
"""

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from experiments.config import Config
from experiments.studies.speed import study
from experiments.studies.speed.study import (
    AFTER,
    BEFORE,
    BUSY,
    CHUNKED,
    DECODING,
    ELU,
    EQ_19,
    NONE,
    OURS,
    PERFORMER,
    SDPA,
    SOFTMAX,
    SpeedConfig,
    after,
)
from experiments.train.models import Shape, build_model, check_parameters_match, count_parameters
from linear_rope import CausalLM, LinearRoPEAttention, SoftmaxRoPEAttention, apply_rope, linear_attention
from linear_rope.attention.growing import shortened
from linear_rope.attention.softmax import KeyValueCache
from linear_rope.features import FavorPlus, GivenFeatures

POSITIONS = {
    "softmax": ("none", "learned", "sinusoidal", "rope", "alibi"),
    "favor+": ("none", "learned", "sinusoidal", "rope before", "rope after"),
    "elu+1": ("none", "learned", "sinusoidal", "rope before", "rope after"),
}
"""whose cost is measured, by kernel"""


class Call(NamedTuple):
    """A competitor, ready to be measured."""

    run: Callable[[], object]
    """one call; what it returns can be dropped"""
    returned_bytes: int = 0
    """of the output and the gradients, which every competitor has to return"""
    facts: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default is never changed)
    """what else is to be known about it: fields of a records.Sample"""


def competitors(topic: str, length: int, config: SpeedConfig) -> list[str]:
    """Who is measured at this length, ours first."""
    peers = {study.FAST_TRANSFORMERS: why_no_fast_transformers, study.FLA: why_no_fla}
    names = {
        "operation": [OURS, EQ_19, EQ_19 + CHUNKED, SDPA],
        "mapped": [AFTER, SOFTMAX],
        "module": [after(config.num_features), after(config.fewer_features), BEFORE, NONE, ELU, SOFTMAX],
        "training": [AFTER, BEFORE, NONE, SOFTMAX],
        "positions": [f"{kernel} {position}" for kernel, positions in POSITIONS.items() for position in positions],
        "decays": list(study.DECAYS),
    }.get(topic, [AFTER, ELU, SOFTMAX])
    if topic == DECODING and length in config.performer_contexts:
        return [*names, PERFORMER]
    if topic in ("operation", "mapped", "training") and performer_gib(topic, length, config) <= config.performer_gib:
        names.append(PERFORMER)
    return names + [name for name, why in peers.items() if topic == "operation" and why(config) is None]


def build(topic: str, direction: str, name: str, length: int, config: SpeedConfig) -> Call:
    """Set a competitor up. Its inputs are the same for equal sizes."""
    torch.manual_seed(0)
    if name in (study.SGEMM, study.COPY):
        # In the precision of the others: on CUDA it is the rate of the tensor cores that theirs is to be seen beside.
        a, b = torch.randn(2, config.gemm_size, config.gemm_size, device=config.device, dtype=dtype_of(config))
        return Call(partial(torch.mm, a, b) if name == study.SGEMM else partial(b.copy_, a))
    if topic in _DIFFERENTIATED:
        return _differentiated(direction, *_DIFFERENTIATED[topic](name, length, config), config)
    if topic in (DECODING, BUSY):
        return _decoding(name, length, config)
    model = language_model(name, length, config)
    if topic == "training":
        with torch.device("meta"):
            ours = language_model(AFTER, length, replace(config, device="meta"))
        check_parameters_match({name: count_parameters(model), AFTER: count_parameters(ours)})
    return _step(model, length, config)


def left_out(config: SpeedConfig) -> list[str]:
    """What a run with these settings does not measure, and why; a sentence each."""
    words, notes = study.STUDY.words["notes"], []
    if config.device == "cuda" and config.lengths == study.settings("gpu", "cuda").lengths:
        notes.append(words["same_presets"])
    if config.takes_flash_attention:
        notes.append(words["flash_attention"])
    for topic, lengths in (("operation", config.lengths), ("training", config.training_lengths)):
        too_large = {n: gib for n in lengths if (gib := performer_gib(topic, n, config)) > config.performer_gib}
        if too_large and config.measures(topic):
            sizes = ", ".join(f"{gib:.0f} GiB at N = {n:,}" for n, gib in too_large.items())
            values = {"what": words[topic], "most": config.performer_gib, "sizes": sizes}
            notes.append(words["performer_too_large"].format(**values))
    for name, why in (("pytorch-fast-transformers", why_no_fast_transformers(config)), ("fla", why_no_fla(config))):
        if why is not None and config.measures("operation"):
            notes.append(f"{name} is not measured: {why}.")
    return notes


def performer_gib(topic: str, length: int, config: SpeedConfig) -> float:
    """What performer-pytorch's causal path without compiled kernels keeps for its backward pass."""
    heads = config.heads if topic in ("operation", "mapped") else config.model_heads * config.layers
    return 4 * heads * length * config.num_features * config.head_dim / 2**30


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
    """Why fla's kernel cannot be called here; None if it can."""
    if config.device != "cuda":
        return "its kernels need a GPU"
    try:
        from fla.ops.linear_attn import chunk_linear_attn  # noqa: F401
    except ImportError as error:
        return f"not installed ({error}); pip install fla-core"
    return None


Differentiated = tuple[Callable[[], Tensor], list[Tensor], Tensor]
"""the forward pass, the tensors whose gradients the backward pass makes, and one of the output's size"""


def dtype_of(config: SpeedConfig) -> torch.dtype:
    found: torch.dtype = getattr(torch, config.precision)
    return found


def _operation(name: str, length: int, config: SpeedConfig) -> Differentiated:
    """A competitor's operation on positive q, k of (1, H, N, M), or (1, H, N, D) for softmax, and v (1, H, N, D)."""
    width = config.head_dim if name == SDPA else config.num_features
    place: Any = {"device": config.device, "dtype": dtype_of(config)}
    q, k = (torch.rand(1, config.heads, length, width, **place).requires_grad_() for _ in range(2))
    v = torch.randn(1, config.heads, length, config.head_dim, **place).requires_grad_()
    return lambda: _OPERATIONS[name](q, k, v), [q, k, v], v


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
    return (y / (q * k.cumsum(1)).sum(-1, keepdim=True)).transpose(1, 2)


_ours = partial(linear_attention, causal=True, feature_map=GivenFeatures())
_OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    OURS: partial(_ours, rope="none"),
    EQ_19: partial(_ours, rope="after"),
    EQ_19 + CHUNKED: partial(_ours, rope="after", implementation="chunked"),
    SDPA: partial(F.scaled_dot_product_attention, is_causal=True),
    PERFORMER: _performer,
    study.FAST_TRANSFORMERS: _fast_transformers,
    study.FLA: _fla,
}


def _mapped(name: str, length: int, config: SpeedConfig) -> Differentiated:
    """A competitor's attention as a user calls it, with its map and rotation, on q, k and v of (1, H, N, D)."""
    shape = (3, 1, config.heads, length, config.head_dim)
    q, k, v = (x.requires_grad_() for x in torch.randn(shape, device=config.device, dtype=dtype_of(config)))
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] = _softmax_rope
    if name == PERFORMER:
        from performer_pytorch import FastAttention

        attend = FastAttention(config.head_dim, config.num_features, causal=True).to(config.device)
    elif name == AFTER:
        feature_map = FavorPlus(config.head_dim, config.num_features).to(config.device)
        attend = partial(linear_attention, causal=True, feature_map=feature_map)
    return lambda: attend(q, k, v), [q, k, v], v


def _softmax_rope(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    positions = torch.arange(q.shape[2], device=q.device)
    q, k = apply_rope(q, positions), apply_rope(k, positions)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _differentiated(
    direction: str, run: Callable[[], Tensor], inputs: list[Tensor], like: Tensor, config: SpeedConfig
) -> Call:
    """The forward pass without a graph, or forward and backward."""
    gradient = torch.randn_like(like)

    def forward() -> Tensor:
        with _softmax_backend(config):
            return run()

    def both() -> object:
        y = forward()
        return y, torch.autograd.grad(y, inputs, gradient.to(y.dtype))

    if direction == study.FORWARD:
        return Call(torch.no_grad()(forward), like.nbytes)
    return Call(both, like.nbytes + sum(x.nbytes for x in inputs))


def _autocast(config: SpeedConfig) -> torch.autocast:
    return torch.autocast(config.device, dtype=torch.bfloat16, enabled=config.precision == "bfloat16")


def _softmax_backend(config: SpeedConfig, model: nn.Module | None = None) -> contextlib.AbstractContextManager[Any]:
    """Within it PyTorch's softmax attention is FlashAttention or raises, where the settings allow FlashAttention.

    It takes no bias of the scores: if the model adds one, as ALiBi and decays do, PyTorch picks the backend.
    """
    modules = model.modules() if model else ()
    biased = any(isinstance(each, SoftmaxRoPEAttention) and (each.alibi or each.decay is not None) for each in modules)
    is_flash = config.takes_flash_attention and not biased
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if is_flash else contextlib.nullcontext()


def _module(name: str, length: int, config: SpeedConfig) -> Differentiated:
    dim = config.heads * config.head_dim
    kind, _, features = name.partition(", M=")
    variant = study.variant(kind)
    options: dict[str, Any] = {"causal": True}
    attention: type[nn.Module] = SoftmaxRoPEAttention
    if variant.kernel != "softmax":
        attention = LinearRoPEAttention
        options |= {"feature_map": variant.kernel, "rope": variant.position.removeprefix("rope-")}
    if variant.kernel == "favor+":
        options["num_features"] = int(features or config.num_features)
    module = attention(dim, config.heads, **options).to(config.device)
    x = torch.randn(1, length, dim, device=config.device, requires_grad=True)
    return _autocast(config)(lambda: module(x)), [x, *module.parameters()], x


_DIFFERENTIATED = {"rate": _operation, "operation": _operation, "mapped": _mapped, "module": _module}


def language_model(name: str, length: int, config: SpeedConfig) -> nn.Module:
    """The language model of a competitor; besides tables of learned positions all have as many parameters."""
    if name == PERFORMER:
        return _performer_model(length, config)
    sizes = Config(dim=config.dim, layers=config.layers, heads=config.model_heads, num_features=config.num_features)
    variant = study.variant(name)
    return build_model(variant, variant.config(sizes), 0, Shape(256, length)).to(config.device)


def _performer_model(length: int, config: SpeedConfig) -> nn.Module:
    from performer_pytorch import PerformerLM

    sizes = {"num_tokens": 256, "max_seq_len": length, "dim": config.dim, "depth": config.layers}
    heads = {"heads": config.model_heads, "dim_head": config.dim // config.model_heads, "causal": True}
    features = {"nb_features": config.num_features, "feature_redraw_interval": None}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a line a layer
        model: nn.Module = PerformerLM(**sizes, **heads, **features, tie_embed=True)
    return model.to(config.device)


def _step(model: nn.Module, length: int, config: SpeedConfig) -> Call:
    """A step of AdamW on one sequence."""
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(256, (1, length + 1), device=config.device)

    def step(length: int = length) -> None:
        optimizer.zero_grad()
        with _softmax_backend(config, model), _autocast(config):
            logits = model(tokens[:, :length])
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1 : length + 1].flatten()).backward()
        optimizer.step()

    # The optimiser makes its averages in its first step; they belong to the model, not to a step.
    step(min(length, 16))
    optimizer.zero_grad()
    parameters, _ = count_parameters(model)
    return Call(step, 4 * parameters, {"parameters": parameters})


@torch.no_grad()
def _decoding(name: str, length: int, config: SpeedConfig) -> Call:
    """One token after a context: linear attention's of a real prefill, softmax attention's of random keys and values.

    The time of softmax attention's token depends on their number only, and a real prefill is quadratic.
    """
    model = language_model(name, length, config).eval()
    context = torch.randint(256, (1, length), device=config.device)
    if name == PERFORMER:
        from performer_pytorch.autoregressive_wrapper import AutoregressiveWrapper

        return Call(partial(AutoregressiveWrapper(model).generate, context, 1))
    assert isinstance(model, CausalLM)
    token, position = context[:, -1:], torch.tensor([length], device=config.device)
    states: Sequence[Any] = [None] * config.layers
    if name == SOFTMAX:
        shape = (config.layers, 2, 1, config.model_heads, length, config.dim // config.model_heads)
        states = [KeyValueCache(k, v, None, position) for k, v in torch.randn(shape, device=config.device)]
    else:
        positions = torch.arange(length, device=config.device)
        _, states = model.advance(model.embedding(context, positions), positions, states)

    @torch.no_grad()
    def decode() -> Tensor:
        nonlocal states
        x, states = model.advance(model.embedding(token, position), position, states)
        if name == SOFTMAX and states[0].k.shape[-2] > length + 16:  # the cache has grown by no more than this
            pairs = [(shortened(each.k, length), shortened(each.v, length)) for each in states]
            states = [KeyValueCache(k, v, None, position) for k, v in pairs]
        return model.embedding.logits(model.norm(x))

    return Call(decode, facts={"state_bytes": sum(x.nbytes for x in tree_leaves(states) if isinstance(x, Tensor))})
