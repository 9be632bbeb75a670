"""A language model as files of ONNX: whole sequences, a prompt with the state after it, and a token after a state."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from linear_rope.diagnostics.diagnose import evaluating
from linear_rope.model import CausalLM
from linear_rope.states import mapped

DYNAMIC = torch.export.Dim.DYNAMIC


class _Prefill(nn.Module):
    def __init__(self, model: CausalLM, state: Any = None) -> None:
        super().__init__()
        self.model, self.like = model, state

    def forward(self, tokens: Tensor, *before: Tensor) -> tuple[Tensor, ...]:
        given = iter(before)
        state = None if self.like is None else mapped(self.like, lambda _, x: next(given))
        logits, after = self.model.prefill(tokens, state=state)
        return logits, *_tensors(after).values()


def _tensors(state: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    mapped(state, lambda name, x: found.setdefault(f"state_{len(found)}_{name}", x))
    return found


@torch.no_grad()
def save(model: CausalLM, directory: Path | str) -> list[Path]:
    """Write ``model.onnx``, ``prefill.onnx`` and ``step.onnx`` into a directory that exists.

    Batch and length are free, as is the length of a cache of keys and values. ``model.onnx`` maps ``tokens`` (B, N)
    int64 to ``logits`` (B, N, vocab_size); the others give the state after these too, as ``new_state_...``, and
    ``step.onnx`` takes that before, under the same names without ``new_``, with one token of each sequence.

    Raises:
        ImportError: onnxscript is not installed.
        ValueError: a model of another kind.
    """
    if not isinstance(model, CausalLM):
        raise ValueError(f"model is a {type(model).__name__}; give a CausalLM")
    with evaluating(model):
        device = next(model.parameters()).device
        tokens = [torch.zeros(*shape, dtype=torch.int64, device=device) for shape in ((2, 70), (3, 1), (2, 1))]
        state, other = (model.prefill(each)[1] for each in tokens[:2])
        before = _tensors(state)
        pairs = zip(before.values(), _tensors(other).values(), strict=True)
        # What depends on batch or length is another number in another prompt; of a window too, if that is of one token.
        free = [
            {axis: DYNAMIC for axis, sizes in enumerate(zip(x.shape, y.shape, strict=True)) if sizes[0] != sizes[1]}
            for x, y in pairs
        ]
        after, both = ["logits", *(f"new_{name}" for name in before)], {0: DYNAMIC, 1: DYNAMIC}
        one, names = {0: DYNAMIC}, ["tokens", *before]
        calls: list[tuple[str, nn.Module, tuple[Tensor, ...], list[str], list[str], tuple[Any, ...]]] = [
            ("model", model, (tokens[0],), names[:1], after[:1], (both,)),
            ("prefill", _Prefill(model), (tokens[0],), names[:1], after, (both,)),
            ("step", _Prefill(model, state), (tokens[2], *before.values()), names, after, (one, tuple(free))),
        ]
        paths = []
        for name, module, inputs, given, outputs, shapes in calls:
            paths.append(Path(directory) / f"{name}.onnx")
            torch.onnx.export(
                module, inputs, paths[-1], input_names=given, output_names=outputs, dynamic_shapes=shapes, dynamo=True,
                external_data=False, verbose=False,
            )  # fmt: skip
    return paths
