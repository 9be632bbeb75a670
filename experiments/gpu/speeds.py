"""Attention and decoding on a GPU beside other implementations, in order of worth: what is measured, and how.

Inputs are bfloat16 and lie as a projection gives them, (B, N, H, D). Softmax attention and flash-linear-attention have
RoPE, and the latter its feature map, compiled by ``torch.compile``; ours maps and rotates in its kernels.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.gpu.step import Step, time_in_turn, warm_up
from linear_rope import EluPlusOne, FavorPlus, LinearRoPEAttention, SoftmaxRoPEAttention, kernels, linear_attention
from linear_rope.attention.growing import shortened
from linear_rope.attention.softmax import KeyValueCache
from linear_rope.features.base import FeatureMap

OURS, CHUNKED = "ours", "ours, chunked"
SOFTMAX, CUDNN, FLASH = "SDPA", "SDPA by cuDNN", "FlashAttention"
FLA, FLA_EXACT, FLA_FUSED = "fla", "fla with eq. 19's denominator", "fla, fused"
PERFORMER = "performer-pytorch"
FORWARD, BACKWARD = "forward", "forward+backward"
ELU, FAVOR = "elu+1", "favor+"
HEADS, FEATURES, TOKENS, CONTEXT = 16, 128, 65_536, 16_384
COPY, MATMUL = "copy", "matmul"


class Case(NamedTuple):
    """What is measured together."""

    topic: str
    batch: int = 0
    length: int = 0
    map: str = ELU
    width: int = 64
    decay: bool = False
    direction: str = FORWARD

    def toy(self) -> "Case":
        """In its place in a rehearsal."""
        return self._replace(batch=1, length=24, width=16)

    @property
    def key(self) -> dict[str, Any]:
        return self._asdict()


Measured = tuple[Case, tuple[str, ...]]
"""a case, and what is measured in it"""


def both_ways(length: int, names: tuple[str, ...], **others: Any) -> list[Measured]:
    """Both directions at a length, at equal numbers of tokens as far as they go."""
    case = Case("attention", max(1, TOKENS // length), length, **others)
    return [(case._replace(direction=direction), names) for direction in (FORWARD, BACKWARD)]


def cases() -> Iterator[Measured]:
    """All but those of other libraries for linear attention."""
    ours, every = (OURS, SOFTMAX), (OURS, SOFTMAX, CUDNN, FLASH)
    yield Case("limits"), ()
    for length in (1024, 8192, 131072, 2048):
        yield from both_ways(length, (*every, CHUNKED))
    for map in (ELU, FAVOR):
        yield Case("errors", 2, 1024, map, direction=BACKWARD), (OURS, CHUNKED)
    yield from both_ways(2048, ours, map=FAVOR)
    yield from ((Case("decoding", batch, CONTEXT), ours) for batch in (64, 1))
    yield from both_ways(1024, ours, decay=True)
    for length, width in ((1024, 128), (8192, 128), (512, 64), (4096, 64), (32768, 64), (2048, 128), (131072, 128)):
        yield from both_ways(length, every, width=width)
    for length in (16384, 65536):
        yield from both_ways(length, every)
    for length in (1024, 8192):
        yield from both_ways(length, ours, map=FAVOR)
    yield from both_ways(8192, ours, decay=True)


def cases_of_peers() -> Iterator[Measured]:
    """Those, whose kernels take long to compile."""
    for length in (1024, 8192):
        yield from both_ways(length, (OURS, FLA, FLA_EXACT, FLA_FUSED, SOFTMAX))
    yield Case("errors", 2, 1024, direction=BACKWARD), (OURS, FLA_EXACT)
    for direction in (FORWARD, BACKWARD):  # fewer tokens: it keeps a state for each
        yield Case("attention", 4, 1024, FAVOR, direction=direction), (OURS, PERFORMER, SOFTMAX)


class Inputs(NamedTuple):
    """Of one case; (B, H, N, D), log_decay (B, H, N)."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    feature_map: FeatureMap
    cosine: Tensor
    sine: Tensor
    """(N, D / 2) float32"""

    @property
    def differentiated(self) -> list[Tensor]:
        return [x for x in self[:4] if isinstance(x, Tensor)]


def make_inputs(case: Case, device: torch.device) -> Inputs:
    shape = case.batch, case.length, 1 if device.type == "cpu" else HEADS, case.width
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in "qkv")
    log_decay = (-0.1 * torch.rand(q.shape[:3], device=device)).requires_grad_() if case.decay else None
    features = FEATURES if device.type == "cuda" else case.width
    feature_map = FavorPlus(case.width, features) if case.map == FAVOR else EluPlusOne()
    pairs = torch.arange(case.width // 2, device=device, dtype=torch.float64)
    angles = torch.arange(case.length, device=device)[:, None] * 10000.0 ** (-2 * pairs / case.width)
    return Inputs(q, k, v, log_decay, feature_map.to(device), angles.cos().float(), angles.sin().float())


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1).to(x.dtype)


def rotate_both(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """RoPE of the two halves of the channels, in float32."""
    return rotate(q, cosine, sine), rotate(k, cosine, sine)


def map_and_rotate(
    q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, denominator: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """elu+1 and RoPE of (B, N, H, D), and the unrotated denominators (B, N, H, 1), summed in float32."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    total = (q * k.float().cumsum(1)).sum(-1, keepdim=True) if denominator else None
    return *rotate_both(q, k, cosine[:, None], sine[:, None]), total


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False) if device.type == "cuda" else function


def ours(x: Inputs, implementation: str) -> Callable[[], Tensor]:
    return lambda: linear_attention(
        *x[:3], feature_map=x.feature_map, log_decay=x.log_decay, causal=True, implementation=implementation
    )


def softmax(x: Inputs, backend: SDPBackend | None) -> Callable[[], Tensor]:
    turn = compiled(rotate_both, x.q.device)

    def run() -> Tensor:
        q, k = turn(x.q, x.k, x.cosine, x.sine)
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, x.v, is_causal=True)

    return run


def flash_attention(x: Inputs) -> Callable[[], Tensor]:
    from flash_attn import flash_attn_func

    turn = compiled(rotate_both, x.q.device)

    def run() -> Tensor:
        q, k = (each.transpose(1, 2) for each in turn(x.q, x.k, x.cosine, x.sine))
        return flash_attn_func(q, k, x.v.transpose(1, 2), causal=True).transpose(1, 2)

    return run


def fla(x: Inputs, name: str) -> Callable[[], Tensor]:
    from fla.ops.linear_attn import fused_chunk_linear_attn
    from fla.ops.simple_gla import chunk_simple_gla

    kernel = partial(fused_chunk_linear_attn, normalize=False) if name == FLA_FUSED else chunk_simple_gla
    prepare = compiled(map_and_rotate, x.q.device)

    def run() -> Tensor:
        q, k, total = prepare(x.q.transpose(1, 2), x.k.transpose(1, 2), x.cosine, x.sine, name == FLA_EXACT)
        output, _ = kernel(q, k, x.v.transpose(1, 2), scale=1.0)
        return (output if total is None else (output / total).to(x.v.dtype)).transpose(1, 2)

    return run


def performer(x: Inputs) -> Callable[[], Tensor]:
    """Its attention, which does not rotate."""
    from performer_pytorch import FastAttention

    attention = FastAttention(x.q.shape[-1], x.feature_map.count(x.q.shape[-1]), causal=True).to(x.q)
    return lambda: attention(x.q, x.k, x.v)


BUILD: dict[str, Callable[[Inputs], Callable[[], Tensor]]] = {
    OURS: partial(ours, implementation="triton"),
    CHUNKED: partial(ours, implementation="chunked"),
    SOFTMAX: partial(softmax, backend=None),
    CUDNN: partial(softmax, backend=SDPBackend.CUDNN_ATTENTION),
    FLASH: flash_attention,
    **{name: partial(fla, name=name) for name in (FLA, FLA_EXACT, FLA_FUSED)},
    PERFORMER: performer,
}


def differentiated(run: Callable[[], Tensor], x: Inputs, upstream: Tensor) -> list[Tensor]:
    """The output and the gradients."""
    output = run()
    return [
        output.detach(),
        *torch.autograd.grad(output, x.differentiated, upstream.to(output.dtype), allow_unused=True),
    ]


def attention(step: Step, case: Case, names: tuple[str, ...]) -> None:
    torch.compiler.reset()  # or after some sizes of one function PyTorch compiles no more of it
    sizes = case.toy() if step.rehearses else case
    x = make_inputs(sizes, step.device)
    upstream = torch.randn_like(x.v)

    def build(name: str) -> Callable[[], object]:
        run = BUILD[name](x)
        return partial(differentiated, run, x, upstream) if case.direction == BACKWARD else torch.no_grad()(run)

    step.compare(case.key, {name: partial(build, name) for name in names}, OURS, work=work(case))


def work(case: Case) -> dict[str, float]:
    """The fewest bytes that ours must move, and its operations by the recurrence.

    Forward reads q, k and v and writes the output; backward reads the three and the output's gradient, and writes
    three gradients. A token adds to M·D numbers of the state and reads them, and random features take M·D products for
    q and as many for k; backward takes twice as many operations.
    """
    vectors = case.batch * case.length * HEADS
    features = FEATURES if case.map == FAVOR else case.width
    moved, decays, times = (11, 3, 3) if case.direction == BACKWARD else (4, 1, 1)
    numbers = moved * case.width * vectors
    operations = times * (8 if case.map == FAVOR else 4) * features * case.width * vectors
    return {COPY: 2 * numbers + 4 * decays * case.decay * vectors, MATMUL: operations}


def errors(step: Step, case: Case, names: tuple[str, ...]) -> None:
    """‖x − exact‖ / ‖exact‖ against the definition in float64: of outputs, and the largest of the gradients."""
    sizes = case.toy() if step.rehearses else case
    x = make_inputs(sizes, step.device)
    upstream = torch.randn_like(x.v)
    q, k, v = (each.detach().double().requires_grad_() for each in x[:3])
    wide = x._replace(q=q, k=k, v=v, feature_map=copy.deepcopy(x.feature_map).double())
    exact = differentiated(ours(wide, "reference"), wide, upstream)
    # Others rotate channel i with channel i + D / 2, ours 2i with 2i + 1.
    order = torch.arange(sizes.width, device=step.device).view(-1, 2).mT.flatten()
    by_halves = x._replace(q=x.q[..., order], k=x.k[..., order])
    found = {}

    def values_of(name: str) -> list[Tensor]:
        return differentiated(BUILD[name](by_halves if name == FLA_EXACT else x), x, upstream)

    for name in names:
        values = step.attempt(case.key, name, partial(values_of, name))
        if values is not None:
            output, *gradients = (float((a.double() - b).norm() / b.norm()) for a, b in zip(values, exact, strict=True))
            found[name] = {"output": output, "gradients": max(gradients)}
    step.write(case=case.key, errors=found)


@torch.no_grad()
def decoding(step: Step, case: Case, names: tuple[str, ...]) -> None:
    """A token of a module after a context: softmax attention's keys and values are random, with room for more."""
    sizes = case.toy() if step.rehearses else case
    heads = 1 if step.rehearses else HEADS
    options: dict[str, Any] = {"device": step.device, "dtype": torch.bfloat16}
    x = torch.randn(sizes.batch, 1, heads * sizes.width, **options)
    states: dict[str, Any] = {}
    modules: dict[str, Any] = {
        OURS: LinearRoPEAttention(x.shape[-1], heads, feature_map=case.map, rope="after", causal=True),
        SOFTMAX: SoftmaxRoPEAttention(x.shape[-1], heads, causal=True),
    }

    def token(name: str) -> None:
        state = states[name]
        if name == SOFTMAX and state.k.shape[-2] > sizes.length + 16:  # the cache has grown by no more than this
            k, v = shortened(state.k, sizes.length), shortened(state.v, sizes.length)
            state = state._replace(k=k, v=v, position=torch.full_like(state.position, sizes.length))
        states[name] = modules[name].step(x, state)[1]

    def build(name: str) -> Callable[[], object]:
        modules[name].to(**options).eval()
        if name == OURS:
            states[name] = modules[name].prefill(x)[1]
        else:
            k, v = torch.randn(2, sizes.batch, heads, sizes.length, sizes.width, **options)
            states[name] = KeyValueCache(k, v, None, torch.full((sizes.batch,), sizes.length, device=step.device))
        return partial(token, name)

    step.compare(case.key, {name: partial(build, name) for name in names}, OURS, kernels=kernels())


def limits(step: Step, case: Case, names: tuple[str, ...]) -> None:
    """Bytes a second of a large copy, read and written, and operations a second of a large product of matrices."""
    size = 64 if step.rehearses else 8192
    a, b = torch.randn(2, size, size, device=step.device, dtype=torch.bfloat16)
    large = torch.randn(size, 8 * size, device=step.device, dtype=torch.bfloat16)
    into = torch.empty_like(large)
    calls = {COPY: lambda: into.copy_(large), MATMUL: lambda: a @ b}
    for call in calls.values():
        warm_up(call, step.device)
    ms = {name: median(values) for name, values in time_in_turn(calls, step.device).items()}
    amounts = {COPY: 2 * large.nbytes, MATMUL: 2 * size**3}
    step.write(case=case.key, ms=ms, limits={name: amounts[name] / ms[name] * 1e3 for name in ms}, kernels=kernels())


TOPICS = {"attention": attention, "errors": errors, "decoding": decoding, "limits": limits}
STEPS = {"speeds": cases, "peers": cases_of_peers, "compile-speeds": cases, "compile-peers": cases_of_peers}


def main(step: Step) -> None:
    """Each case that has no result yet, until the time is over; in a rehearsal one of each kind."""
    torch.manual_seed(0)
    chosen: dict[Case, Measured] = {}
    for case, names in STEPS[step.name]():
        chosen.setdefault(case._replace(batch=0, length=0) if step.rehearses else case, (case, names))
    for case, names in chosen.values():
        if step.is_over:
            print("the time is over")
            break
        if not (step.is_done(case.key) or (step.only_compiles and case.topic != "attention")):
            print(*case, flush=True)
            TOPICS[case.topic](step, case, names)


if __name__ == "__main__":
    main(Step.of_command())
