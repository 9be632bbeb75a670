"""The causal operator in plain operations of PyTorch, for ONNX, which has none of ours: one block, of any length."""

import torch
import torch.nn.functional as F
from torch import Tensor

from linear_rope.ops.linear.call import Call, Result
from linear_rope.ops.linear.chunked import block_sums, chunk_size
from linear_rope.ops.linear.definition import attention_output
from linear_rope.ops.linear.rotated_features import rotated_features
from linear_rope.ops.linear.state import State


def attend(call: Call) -> Result:
    """Forward; the length may be a symbol. What is kept for a backward pass is left out."""
    formula, length = call.make_formula(), call.q.shape[2]
    q, k, v = (x.to(call.dtype).contiguous() for x in call[:3])
    terms = _whole_chunks(rotated_features(call, formula.features(q), formula.features(k), v))
    before = None if call.memory is None else State(call.memory, call.key_sum, call.stabiliser)
    sums, after, _ = block_sums(terms, before)
    output = attention_output(sums, terms.query_scale)
    by_position = {"output": output, "denominator": sums[1], "scale": sums[2]}
    found = {name: x[:, :, :length] for name, x in by_position.items() if x is not None} | after._asdict()
    nothing = q.new_empty(0)
    return Result(*(nothing if found.get(name) is None else found[name].contiguous() for name in Result._fields))


def _whole_chunks(terms: Call) -> Call:
    """The call with keys at its end that count for nothing, so that its length is a multiple of a chunk's."""
    length, chunk = terms.q.shape[2], chunk_size(terms)
    if isinstance(length, int) and length <= chunk:
        return terms
    # One key at least: whether a symbol is a multiple nobody knows.
    more = (length // chunk + 1) * chunk - length

    def longer(name: str, x: Tensor) -> Tensor:
        value = torch.finfo(x.dtype).min if name == "key_scale" else 0.0
        return F.pad(x, (0, 0, 0, more) if x.dim() == 4 else (0, more), value=value)

    fields = zip(Call._fields, terms, strict=True)
    return terms._replace(**{name: longer(name, x) for name, x in fields if isinstance(x, Tensor)})  # type: ignore[arg-type]
