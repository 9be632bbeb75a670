"""The host's side of one position after a state."""

import triton.language as tl
from torch import Tensor

from linear_rope.ops.linear.call import Call, Result
from linear_rope.ops.linear.triton_form import one_position, settings
from linear_rope.ops.linear.triton_form.launch import Launcher, empty_result, or_none, rows_of


class _Launcher(Launcher):
    def projection(self, width: int) -> tuple[Tensor, Tensor | None]:
        """As it is: a step is one launch."""
        return self.constant(width).contiguous(), None


def attend(call: Call) -> Result:
    """Forward, of one position, for what is not differentiated."""
    result = empty_result(call, keep=False)
    if not result.output.numel():
        return result
    to = _Launcher(call)
    block, warps = settings.step_of(call)
    constants = {"C": 1, "BLOCK_V": block, "CHANNELS": to.inputs.BLOCK_INPUT, "DTYPE": tl.float32, "PRECISION": "ieee"}
    to.run(
        one_position.one_position,
        (to.rows, -(-to.values // block)),
        to.inputs._replace(chunks=1, **{name: tl.constexpr(x) for name, x in constants.items()}),
        to.state(call.memory, call.key_sum, call.stabiliser),
        to.state(*(or_none(x) for x in (result.memory, result.key_sum, result.stabiliser))),
        rows_of(result.output),
        or_none(result.denominator),
        or_none(result.scale),
        warps=warps,
    )
    return result
