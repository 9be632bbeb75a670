"""Linear attention from its inputs as one operator, which compilers, transforms and tracers see as a whole.

``torch.library`` gives it a shape without data and a rule for ``vmap``; its derivative is an operator too, so gradients
can be batched and compiled, but not differentiated again.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from linear_rope.ops.linear import blockwise, exported, native, triton_form
from linear_rope.ops.linear.call import Call, Gradients, Result, Upstream, empty_gradients
from linear_rope.ops.linear.rotated_features import for_operator
from linear_rope.ops.linear.state import State
from linear_rope.ops.linear.triton_form import proof, trial
from linear_rope.tracing import are_plain, has_tangent, is_for_onnx, is_watched

TENSORS = Call._fields[: Call._fields.index("numbers")]
"""the fields of :class:`Call` that are a tensor or None"""
FIELDS = Call._fields[:-2]
"""what the operator takes"""


def attend(call: Call, implementation: str = "auto") -> Result:
    """What ``call`` asks for, mapped here or by the operator; differentiable once with respect to :class:`Gradients`.

    In forward mode it is computed in PyTorch, which differentiates it.

    Raises:
        ValueError: the implementation is "native" or "triton" and cannot be had for this call.
    """
    # PyTorch 2.6 compiles neither _replace nor a slice of a named tuple.
    fields = tuple(for_operator(call))[:-3]
    call = Call(*fields, implementation)  # type: ignore[arg-type, call-arg]
    if is_for_onnx():
        return exported.attend(call)
    if has_tangent(*call):
        _check_forward_mode(call)
        return blockwise.attend(call, keep=False)
    # Compilers and tracers follow an operator, function transforms an autograd.Function.
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined]
    if _is_triton_proved(call, may_prove=not traced):
        call = Call(*fields, "triton")  # type: ignore[arg-type, call-arg]
    keep = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in call)
    if not keep and not is_watched() and are_plain(*call):
        return _implementation(call).attend(call, keep=False)  # the same without the dispatcher, for decoding
    apply = _forward if traced else _Forward.apply
    return Result(*apply(*tuple(call)[:-2], keep))


def with_state(call: Call, before: State | None = None, implementation: str = "auto") -> tuple[Tensor, State]:
    """The causal output after the state ``before``, and the state after the last position."""
    result = attend(after(before, for_operator(call)), implementation)
    # What there is not is an empty vector; of no sequences all is empty.
    key_sum, stabiliser = (None if x.dim() == 1 else x for x in (result.key_sum, result.stabiliser))
    return result.output, State(result.memory, key_sum, stabiliser)


def after(before: State | None, call: Call) -> Call:
    """The call, after a state. Raises ValueError for that of another feature map, where it can be told."""
    if before is None:
        return call
    check_scale(before, call.has_scale)
    return call._replace(**before._asdict())


def check_scale(state: State, has_scale: bool) -> None:
    """Raises ValueError unless the keys that were summed had a scale as those to come have."""
    if (state.stabiliser is None) == has_scale:
        raise ValueError(
            "state is that of an attention with another feature_map; give one that prefill gave with this one"
        )


def has_both_ways(call: Call) -> bool:
    """Whether an implementation that is not PyTorch computes a call that is not causal."""
    return call.implementation in ("native", "triton") or (
        call.implementation == "auto"
        and (native.takes(call.dtype, call.q.device) or _is_triton_proved(call, may_prove=True))
    )


def has_step(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether :func:`step` may have an implementation for calls in ``dtype``."""
    return native.takes(dtype, device) or triton_form.takes(dtype, device)


def step(call: Call) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None] | None:
    """The output of one position, and the memory, key_sum and stabiliser after it; or None: take :func:`attend`.

    For decoding, where what is made around an implementation takes longer than it. The tensors are plain, and nobody
    differentiates or follows them.
    """
    if _is_triton_proved(call, may_prove=True):
        call = call._replace(implementation="triton")
    form = _implementation(call)
    return None if form is blockwise else form.step(call)


def _check_forward_mode(call: Call) -> None:
    if call.implementation in ("native", "triton") or not call.causal:
        kernel = "the Triton kernels do" if call.implementation == "triton" else "the native kernel does"
        raise ValueError(
            f"implementation is {call.implementation!r}, and a tensor has a tangent (torch.func.jvp, "
            f"torch.autograd.forward_ad), which {kernel} not differentiate; choose "
            'implementation="chunked"'
        )


def _is_triton_proved(call: Call, *, may_prove: bool) -> bool:
    """Whether "auto" is "triton": on a GPU, where that is proved.

    Asked before the operator is called, so that compiled code, which is also kept in files, says which it is.
    """
    if call.implementation != "auto" or call.q.device.type not in PROVED_ON or call.pair_decay is not None:
        return False
    return proof.holds(tuple(trial.kind_of(call)), call.q.device, may_prove, proof.generation)


PROVED_ON = ("cuda",)
"""devices on which "auto" may be "triton" """


def _implementation(call: Call) -> ModuleType:
    """Chosen inside the operator, where compilers do not look; but for "auto" of a GPU."""
    if call.implementation == "triton":
        if not triton_form.takes(call.dtype, call.q.device):
            raise ValueError(
                f'implementation is "triton", but the tensors are {call.dtype} on {call.q.device}, and the Triton '
                f'kernels are {triton_form.description()}; give such tensors, or choose "auto" or "chunked"'
            )
        return triton_form
    takes = native.takes(call.dtype, call.q.device)
    if call.implementation == "native" and not takes:
        raise ValueError(
            f'implementation is "native", but the tensors are on {call.q.device}, and the native kernel is '
            f'{native.description()}; give tensors on a CPU, or choose "auto" or "chunked"'
        )
    if takes and call.implementation != "chunked":
        return native
    if not call.causal:
        raise ValueError(
            f"causal is False on {call.q.device} with implementation {call.implementation!r}; the native "
            f"kernel computes that, which is {native.description()}, or the Triton kernels; give causal=True"
        )
    return blockwise


_CALL = ", ".join(f"Tensor{'' if name in 'qkv' else '?'} {name}" for name in TENSORS)
_CALL += ", float[] numbers, str formula, str denominator, bool causal, str implementation"
_RESULT = ", ".join(f"Tensor result_{name}" for name in Result._fields)
_UPSTREAM = tuple(f"grad_{name}" for name in Upstream._fields)
_GRADS = ", ".join(f"Tensor? {name}" for name in _UPSTREAM)


@torch.library.custom_op(
    "linear_rope::causal",
    mutates_args=(),
    schema=f"({_CALL}, bool keep) -> ({', '.join(['Tensor'] * len(Result._fields))})",
)
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    call, keep = Call(*arguments[:-1]), arguments[-1]
    _is_triton_proved(call, may_prove=True)  # for the next time that a compiler asks
    return tuple(_implementation(call).attend(call, keep=keep))


@_forward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    call, keep = Call(*arguments[:-1]), arguments[-1]
    return tuple(_implementation(call).empty_result(call, keep=keep))


@torch.library.custom_op(
    "linear_rope::causal_backward",
    mutates_args=(),
    schema=f"({_CALL}, {_RESULT}, {_GRADS}) -> ({', '.join(['Tensor'] * len(Gradients._fields))})",
)
def _backward(*arguments: Any) -> tuple[Tensor, ...]:
    call, result, of = _parts(arguments)
    if not result.output.numel():
        return _all_there(empty_gradients(call))
    if of.output is None:
        of = of._replace(output=torch.zeros_like(result.output))
    return _all_there(_implementation(call).differentiate(call, result, of))


@_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return _all_there(empty_gradients(_parts(arguments)[0]))


def _parts(arguments: tuple[Any, ...]) -> tuple[Call, Result, Upstream]:
    first, last = len(FIELDS), len(FIELDS) + len(Result._fields)
    return Call(*arguments[:first]), Result(*arguments[first:last]), Upstream(*arguments[last:])


def _all_there(gradients: Gradients) -> tuple[Tensor, ...]:
    """An operator returns no None."""
    return tuple(gradients.q.new_empty(0) if x is None else x for x in gradients)


def _batched(
    operator: Callable[..., tuple[Tensor, ...]], names: tuple[str, ...], outputs: tuple[str, ...]
) -> Callable[..., tuple[tuple[Tensor, ...], tuple[int | None, ...]]]:
    """The rule of vmap: the new axis becomes part of the batch; maps with tensors of their own go one by one."""

    def batch_axis(name: str) -> int:
        return 1 if name in ("memories", "key_sums", "stabilisers") else 0

    def fold(name: str, x: Any, axis: int | None, size: int, batch: int) -> Any:
        if not isinstance(x, Tensor) or name == "constant" or (axis is None and x.shape == (0,)):
            return x
        rotates = name.endswith("rotation")
        if rotates and axis is None and x.shape[0] == 1:
            return x
        x = x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
        if rotates:  # one for all of a batch becomes one each
            x = x.expand(size, batch, *x.shape[2:])
        return x.movedim(0, batch_axis(name)).flatten(batch_axis(name), batch_axis(name) + 1)

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        size = info.batch_size
        if in_dims[names.index("constant")] is not None:
            each = []
            for index in range(size):
                chosen = [_select(x, axis, index) for x, axis in zip(arguments, in_dims, strict=True)]
                each.append(operator(*chosen))
            return tuple(map(torch.stack, zip(*each, strict=True))), (0,) * len(outputs)
        batch = arguments[0].shape[0] if in_dims[0] is None else arguments[0].movedim(in_dims[0], 0).shape[1]
        folded = [fold(*each, size, batch) for each in zip(names, arguments, in_dims, strict=True)]
        found = operator(*folded)
        unfolded = [
            (x, None) if x.shape == (0,) else (x.unflatten(batch_axis(name), (size, batch)), batch_axis(name))
            for name, x in zip(outputs, found, strict=True)
        ]
        tensors, axes = zip(*unfolded, strict=True)
        return tensors, axes

    return rule


def _select(x: Any, axis: Any, index: int) -> Any:
    # The axis of a list of numbers is a list.
    return x.select(axis, index) if isinstance(axis, int) else x


_forward.register_vmap(_batched(_forward, (*FIELDS, "keep"), Result._fields))
_backward.register_vmap(
    _batched(
        _backward,
        (*FIELDS, *Result._fields, *_UPSTREAM),
        Gradients._fields,
    )
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *ctx.rest, _ = inputs[len(TENSORS) :]
    ctx.set_materialize_grads(False)
    # All of it, so that a change in place before the backward pass is an error and not a wrong gradient.
    ctx.save_for_backward(*inputs[: len(TENSORS)], *output)


def _differentiate(ctx: Any, *of_results: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    tensors, output = saved[: len(TENSORS)], saved[len(TENSORS) :]
    of = dict(zip(Result._fields, of_results, strict=True))
    grads = [of[name] for name in Upstream._fields]
    # functorch always asks for a graph of the gradient; whether it is needed turns out later.
    apply = _backward if torch.compiler.is_compiling() else _Backward.apply
    found = dict(zip(Gradients._fields, apply(*tensors, *ctx.rest, *output, *grads), strict=True))
    by_input = (None if x is None else found.get(name) for name, x in zip(TENSORS, tensors, strict=True))
    return *by_input, *[None] * (len(FIELDS) - len(TENSORS) + 1)


_forward.register_autograd(_differentiate, setup_context=_setup_context)


class _Forward(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(_forward)
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_differentiate)


class _Backward(torch.autograd.Function):
    generate_vmap_rule = True
    forward = staticmethod(_backward)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        raise RuntimeError(_ONCE)


_ONCE = (
    "linear attention in C++, and all that is causal, can be differentiated once; for second derivatives give "
    'implementation="reference"'
)
