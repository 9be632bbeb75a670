"""The host's side: from a call of the operator to the arguments of kernels, and from their results to the call's."""

import math
from contextlib import nullcontext
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from linear_rope.features.registry import FORMULAS
from linear_rope.ops.linear.call import (
    Call,
    Gradients,
    Result,
    Upstream,
    check_partners,
    empty_gradients,
    new_exponents_of_states,
    put_exponents,
)
from linear_rope.ops.linear.call import empty_result as any_result
from linear_rope.ops.linear.triton_form import backward, forward, settings
from linear_rope.ops.linear.triton_form.state import States
from linear_rope.ops.linear.triton_form.tiles import Inputs, Rows

NO_STATES = States(None, None, None)
JOIN_BLOCK = 1024
"""numbers of a state for a program that joins pieces"""
FAR = 2**31
"""addresses within a tile are counted in 32 bits"""


class Launcher:
    """The kernels' arguments that are the same in both passes."""

    def __init__(self, call: Call) -> None:
        check_partners(call)
        self.call, self.settings = call, settings.launch_of(settings.size_of(call), call.q.device)
        batch, self.heads, self.length, width = call.q.shape
        self.keys = self.length if call.causal else call.k.shape[2]
        self.rows, self.values, self.features = batch * self.heads, call.v.shape[-1], call.features
        self.chunks = self.chunks_of(self.length)
        self.pieces, self.chunks_of_piece = settings.pieces_of(self.length, self.heads, self.settings.chunk)
        self.products, precision = products_of(call)
        queries, keys = (batch, self.heads, self.length), (batch, self.heads, self.keys)
        favor = call.formula == "favor+"
        hyperbolic, paired, eps = FORMULAS[call.formula].settings(call.numbers)
        q_rotation = self._rotation("q_rotation", call.q_rotation, self.length)
        k_rotation = self._rotation("k_rotation", call.k_rotation, self.keys)
        projection, rest = self.projection(width) if favor else (None, None)
        input_width = width if favor else self.features
        self.inputs = Inputs(
            q=self.strided("q", call.q, (*queries, width)),
            k=self.strided("k", call.k, (*keys, width)),
            v=self.strided("v", call.v, (*keys, self.values)),
            denominator_q=self.strided("denominator_q", call.denominator_q, (*queries, self.features)),
            denominator_k=self.strided("denominator_k", call.denominator_k, (*keys, self.features)),
            query_scale=self.flat("query_scale", call.query_scale, queries),
            key_scale=self.flat("key_scale", call.key_scale, keys),
            log_decay=self.flat("log_decay", call.log_decay, queries),
            padding=self._padding(call.padding),
            q_rotation=q_rotation,
            k_rotation=None if _same(q_rotation, k_rotation) else k_rotation,
            q_rotation_batch=_batch_stride(q_rotation),
            k_rotation_batch=_batch_stride(k_rotation),
            projection=projection,
            projection_rest=rest,
            length=self.length,
            chunks=self.chunks,
            heads=self.heads,
            FORMULA=tl.constexpr(call.formula),
            PAIRED=tl.constexpr(paired),
            HYPERBOLIC=tl.constexpr(hyperbolic),
            EPS=tl.constexpr(eps),
            HALF_NORM=tl.constexpr(0.5 / math.sqrt(width)),
            LOG_SIZE=tl.constexpr(math.log(self.features) / 2),
            HAS_SCALE=tl.constexpr(call.has_scale),
            DENOMINATOR=tl.constexpr(settings.denominator_of(call)),
            D=tl.constexpr(width),
            M=tl.constexpr(self.features),
            V=tl.constexpr(self.values),
            INPUT_WIDTH=tl.constexpr(input_width),
            BLOCK_INPUT=tl.constexpr(settings.tile(input_width)),
            BLOCK_M=tl.constexpr(settings.tile(self.features)),
            BLOCK_V=tl.constexpr(settings.tile(self.values)),
            CHANNELS=tl.constexpr(min(self.settings.channels, settings.tile(input_width))),
            VALUES=self._values(self.settings.values),
            C=tl.constexpr(self.settings.chunk),
            DTYPE=tl.constexpr(tl.bfloat16 if self.products == torch.bfloat16 else tl.float32),
            PRECISION=tl.constexpr(precision),
        )

    def _values(self, at_a_time: int) -> Any:
        return tl.constexpr(min(at_a_time, settings.tile(self.values)))

    @property
    def of_outputs(self) -> Inputs:
        """What the kernel of outputs takes."""
        values = self.settings.output_values
        return self.inputs if values is None else self.inputs._replace(VALUES=self._values(values))

    @property
    def of_keys(self) -> Inputs:
        """Where every query sees every key: what a kernel takes that goes through the keys."""
        call, rotation, batch = self.inputs, self.inputs.k_rotation, self.inputs.k_rotation_batch
        if rotation is None:  # the queries'
            rotation, batch = call.q_rotation, call.q_rotation_batch
        rotations = {"q_rotation": rotation, "q_rotation_batch": batch, "k_rotation": None}
        return call._replace(length=self.keys, chunks=self.chunks_of(self.keys), **rotations)

    def chunks_of(self, length: int) -> int:
        return -(-length // self.settings.chunk)

    def strided(self, name: str, x: Tensor | None, shape: tuple[int, ...]) -> Any:
        """Rows of a tensor (B, H, N, ·) where it lies; None for None."""
        if x is None:
            return None
        self._check(name, x, shape)
        x = x.resolve_neg()
        farthest = self.settings.chunk * abs(x.stride(2)) + settings.tile(x.shape[-1]) * abs(x.stride(3))
        return rows_of(x if farthest < FAR else x.contiguous())

    def flat(self, name: str, x: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        """Contiguous."""
        if x is None:
            return None
        self._check(name, x, shape)
        return x.resolve_neg().contiguous()

    def _padding(self, padding: Tensor | None) -> Tensor | None:
        padding = self.flat("padding", padding, (self.call.q.shape[0], 1, self.keys, 1))
        return None if padding is None else padding.view(torch.uint8)

    def _rotation(self, name: str, rotation: Tensor | None, length: int) -> Tensor | None:
        if rotation is None:
            return None
        batch = 1 if rotation.shape[0] == 1 else self.call.q.shape[0]
        return self.flat(name, rotation, (batch, 1, length, self.features // 2, 2))

    def constant(self, width: int) -> Tensor:
        assert self.call.constant is not None
        twice = any(map(bool, self.call.numbers[:2]))
        self._check("constant", self.call.constant, (self.features // (2 if twice else 1), width))
        return self.call.constant

    def projection(self, width: int) -> tuple[Tensor, Tensor | None]:
        """In the dtype of products, and what that does not hold."""
        projection = (self.constant(width).float() * width**-0.25).contiguous()
        high = projection.to(self.products)
        return high, (projection - high).to(self.products) if self.products != torch.float32 else None

    def _check(self, name: str, x: Tensor, shape: tuple[int, ...]) -> None:
        if x.shape != shape or x.device != self.call.q.device:
            raise ValueError(
                f"{name} is {tuple(x.shape)} on {x.device}; the Triton kernels need {shape} on {self.call.q.device}"
            )

    def state(self, memory: Tensor | None, normaliser: Tensor | None, stabiliser: Tensor | None) -> States:
        """Of a state (B, H, ...), or of its gradient, one place."""
        batch, heads, rows = self.call.q.shape[0], self.heads, self.rows
        memory = self.flat("memory", memory, (batch, heads, self.features, self.values))
        normaliser = self.flat("normaliser", normaliser, (batch, heads, self.features))
        stabiliser = self.flat("stabiliser", stabiliser, (batch, heads, 1))
        return States(
            None if memory is None else memory.view(rows, self.features, self.values),
            None if normaliser is None or not self.call.has_denominator else normaliser.view(rows, self.features),
            None if stabiliser is None or not self.call.has_scale else stabiliser.view(rows),
        )

    def new_states(self, places: int, dtype: torch.dtype = torch.float32, *, stabilised: bool = True) -> States:
        def new(*shape: int, exists: bool = True, dtype: torch.dtype = torch.float32) -> Tensor | None:
            return torch.empty(places, self.rows, *shape, dtype=dtype, device=self.call.q.device) if exists else None

        return States(
            new(self.features, self.values, dtype=dtype),
            new(self.features, exists=self.call.has_denominator),
            new(exists=stabilised and self.call.has_scale),
        )

    def run(
        self, kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, stages: int = 1, **flags: Any
    ) -> None:
        with torch.cuda.device(self.call.q.device) if self.call.q.is_cuda else nullcontext():
            kernel[grid](*arguments, **flags, num_warps=warps, num_stages=stages)

    def run_rows(self, kernel: Any, pieces: int, *arguments: Any, number: int, **flags: Any) -> None:
        """A program for each piece of each row; ``number`` is the kernel's in :attr:`Launch.warps`."""
        warps, stages = self.settings.warps[number], self.settings.stages
        self.run(kernel, (self.rows, pieces), *arguments, warps=warps, stages=stages, **flags)

    def run_chunks(self, kernel: Any, inputs: Any, *arguments: Any, number: int, **flags: Any) -> None:
        """A program for each chunk of each row; ``inputs`` are the kernel's Inputs."""
        warps = self.settings.warps[number]
        self.run(kernel, (inputs.chunks * self.rows,), inputs, *arguments, warps=warps, **flags)

    def join(self, states: States, log_kept: Tensor | None, *, reverse: bool) -> States:
        """What comes before each piece, from ``states`` (pieces, rows), which are overwritten."""
        joined = None if states.stabiliser is None else torch.empty_like(states.stabiliser)
        for numbers in (states.memory, states.normaliser):
            if numbers is not None:
                size = numbers[0, 0].numel()
                self.run(
                    forward.join_pieces,
                    (self.rows, -(-size // JOIN_BLOCK)),
                    *(numbers, states.stabiliser, log_kept, joined, self.rows, self.pieces),
                    SIZE=size,
                    BLOCK=JOIN_BLOCK,
                    REVERSE=reverse,
                    warps=4,
                )
        return States(states.memory, states.normaliser, joined)

    def for_gradients(
        self, result: Result, of: Upstream
    ) -> tuple[Tensor | None, Rows, Tensor | None, Tensor | None, Tensor | None]:
        """The denominators and the gradient of the output, and where those of denominators and exponents go."""
        queries, keys = self.call.q.shape[:3], self.call.k.shape[:3]
        total = self.flat("total", or_none(result.denominator), queries)
        of_q, of_k = (
            torch.empty(shape, dtype=torch.float32, device=self.call.q.device) if self.call.has_exponents else None
            for shape in (queries, keys)
        )
        of_total = None if total is None else torch.empty_like(total)
        return total, self.strided("grad_output", of.output, (*queries, self.values)), of_total, of_q, of_k

    def log_kept(self) -> Tensor:
        return torch.empty(self.pieces, self.rows, dtype=torch.float32, device=self.call.q.device)


def products_of(call: Call) -> tuple[torch.dtype, str]:
    """The dtype of the factors of matrix products, and the precision of those in float32.

    float16 has too few exponents for sums of thousands and what is divided by them; TensorFloat-32 has its digits and
    the exponents of float32. Of float32 itself it takes digits away, so there the user is asked.
    """
    dtypes = {x.dtype for x in (call.q, call.k, call.v)}
    if dtypes == {torch.bfloat16}:
        return torch.bfloat16, "ieee"
    return torch.float32, "tf32" if dtypes == {torch.float16} or settings.allows_tf32() else "ieee"


def rows_of(x: Tensor | None) -> Rows | None:
    return None if x is None else Rows(x, *x.stride())


def _batch_stride(rotation: Tensor | None) -> int:
    return 0 if rotation is None or rotation.shape[0] == 1 else rotation.stride(0)


def _same(x: Tensor | None, y: Tensor | None) -> bool:
    return x is y or (x is not None and y is not None and x.data_ptr() == y.data_ptr() and x.shape == y.shape)


def empty_result(call: Call, *, keep: bool, chunk: int | None = None) -> Result:
    """Memory for a result; with ``keep`` also for the state before each chunk, and the exponents of queries."""
    result = any_result(call)
    # What is computed from half precision is rounded to it once, here.
    result = result._replace(output=result.output.to(call.v.dtype))
    if not keep or not call.causal:
        return result
    batch, heads, length, _ = call.q.shape
    # An upper bound that a compiler can reckon with, and never 1: it would make an axis of one a case of its own.
    places = length // (chunk or settings.launch_of(settings.size_of(call), call.q.device).chunk) + 2
    return result._replace(
        weights=call.new(batch, heads, length, exists=call.has_scale),
        memories=call.new(places, batch, heads, call.features, call.v.shape[-1], dtype=products_of(call)[0]),
        key_sums=call.new(places, batch, heads, call.features, exists=call.has_denominator),
        stabilisers=call.new(places, batch, heads, 1, exists=call.has_scale),
    )


def attend(call: Call, *, keep: bool) -> Result:
    """Forward; ``keep`` what :func:`differentiate` needs."""
    result = empty_result(call, keep=keep)
    if not result.output.numel():
        return result
    to = Launcher(call)
    states = saved(result, call) if keep else to.new_states(to.chunks + 1, to.products)
    begin = to.state(call.memory, call.key_sum, call.stabiliser)
    if to.pieces > 1:
        begin = _before_pieces(to, begin)
    end = States(*(or_none(x) for x in (result.memory, result.key_sum, result.stabiliser)))
    _run_states(to, begin, states, end, None, keep=True)
    of_queries = (or_none(x) for x in (result.denominator, result.scale, result.weights))
    to.run_chunks(forward.outputs, to.of_outputs, states, rows_of(result.output), *of_queries, to.rows, number=1)
    return result


def _run_states(
    to: Launcher, begin: States, states: States, end: States, log_kept: Tensor | None, *, keep: bool
) -> None:
    pieces = to.pieces if keep else to.pieces - 1
    arguments = to.inputs, begin, states, end, log_kept, to.rows, to.chunks_of_piece
    to.run_rows(forward.states_before_chunks, pieces, *arguments, KEEP=keep, number=0)


def _before_pieces(to: Launcher, begin: States) -> States:
    """The states before pieces, (pieces, rows), from that before the first."""
    states = to.new_states(to.pieces)
    for whole, first, nothing in zip(states, begin, (0.0, 0.0, -1e30), strict=True):
        if whole is not None:
            whole[0] = nothing if first is None else first
    if states.stabiliser is not None:
        states.stabiliser[0].clamp_(min=-1e30)
    log_kept = to.log_kept() if to.call.log_decay is not None else None
    _run_states(to, NO_STATES, NO_STATES, states, log_kept, keep=False)
    return to.join(states, log_kept, reverse=False)


def saved(result: Result, call: Call) -> States:
    """What the forward pass kept, (places, B·H, ...)."""
    memory, normaliser, stabiliser = (
        x.contiguous().flatten(1, 2) if x.numel() else None
        for x in (result.memories, result.key_sums, result.stabilisers)
    )
    return States(memory, normaliser, stabiliser)


def or_none(x: Tensor) -> Tensor | None:
    return x if x.numel() else None


def differentiate(call: Call, result: Result, of: Upstream) -> Gradients:
    """Backward."""
    gradients, to = empty_gradients(call), Launcher(call)
    states, saved_query = saved(result, call), or_none(result.weights)
    total, grad_rows, of_total, of_q, of_k = to.for_gradients(result, of)
    grad_total = to.flat("grad_total", of.denominator, call.q.shape[:3])
    to.run_chunks(
        backward.query_gradients,
        *(to.inputs, states, saved_query, rows_of(result.output), total, grad_rows, grad_total),
        *(rows_of(gradients.q), rows_of(gradients.denominator_q), of_total, of_q, to.rows),
        number=2,
    )
    of_states = to.new_states(to.chunks, to.products, stabilised=False)
    read = states, saved_query, total, grad_rows, of_total
    end = States(gradients.memory, gradients.key_sum if call.has_denominator else None, None)
    _run_gradients_of_states(to, read, to.state(of.memory, of.key_sum, None), of_states, end)
    chunks_of_stretch = max(1, settings.STRETCH // to.settings.chunk)
    stretch = chunks_of_stretch * to.settings.chunk
    of_exponents = None
    if call.log_decay is not None:
        of_exponents = new_exponents_of_states(call, result, of, stretch)
    of_keys = (rows_of(x) for x in (gradients.k, gradients.v, gradients.denominator_k))
    to.run_chunks(
        backward.key_gradients,
        *(to.inputs, *read, of_states, *of_keys, of_k, of_exponents, to.rows),
        CHUNKS_OF_STRETCH=chunks_of_stretch,
        number=4,
    )
    if of_q is not None and of_k is not None:
        nothing = of_exponents if of_exponents is not None else of_q
        put_exponents(gradients, call, of_q, of_k, nothing, stretch)
    return gradients


def _run_gradients_of_states(
    to: Launcher, read: tuple[Any, ...], begin: States, of_states: States, end: States
) -> None:
    """``begin`` is the gradient of the state after the last chunk, ``end`` that of the state before the first."""
    fades = to.call.has_scale or to.call.log_decay is not None

    def run(begin: States, end: States, log_kept: Tensor | None, keep: bool) -> None:
        pieces = to.pieces if keep else to.pieces - 1
        arguments = to.inputs, *read, begin, of_states, end, log_kept, to.rows, to.chunks_of_piece
        to.run_rows(backward.states_after_chunks, pieces, *arguments, KEEP=keep, number=3)

    if to.pieces > 1:
        after = to.new_states(to.pieces, stabilised=False)
        for whole, last in zip(after, begin, strict=True):
            if whole is not None:
                whole[-1] = 0.0 if last is None else last
        log_kept = to.log_kept() if fades else None
        run(NO_STATES, after, log_kept, False)
        begin = to.join(after, log_kept, reverse=True)
    run(begin, end, None, True)
