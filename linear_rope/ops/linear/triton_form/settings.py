"""How the kernels are launched: by the number of features and the value width, which are tiles, the map and the GPU."""

from functools import cache
from typing import Any, NamedTuple

import torch

from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.triton_form import kept

SMALLEST_TILE = 16
"""of a matrix product"""
PIECES_TIMES_HEADS = 256
"""programs for the states of one sequence; fewer leave most of a large GPU idle where there are few sequences"""
CHUNKS_OF_PIECE = 8
"""at least: what pieces cost is shared by so many"""
STRETCH = 256
"""positions over which gradients of decays are summed, about"""

NUMBERS_OF_STEP = 8192
"""of a state, of which a program takes one position further: registers hold them"""


class Launch(NamedTuple):
    """Attributes:
    chunk: positions of a chunk.
    warps: of a program of each kernel: states, outputs, gradients of queries, of states, of keys.
    stages: of the loops of the two kernels of states.
    channels: of FAVOR+'s projection that are taken at a time; all of them stay where a loop over chunks can hold them.
    values: of a head's width that are taken at a time, but by the kernels of states, which hold all.
    output_values: the same of the kernel of outputs, where it is another.
    """

    chunk: int
    warps: tuple[int, int, int, int, int]
    stages: int
    channels: int = 256
    values: int = 256
    output_values: int | None = None


# By the larger of both tiles. Compiled in bfloat16 none of 64 and 128 spills, as test_triton.py tests.
# Chunks are as long as that allows, because the state before each is written and read. Where a tile of values or of the
# projection is taken in parts, fewer registers and less shared memory hold it, and the bytes and products are the same.
# None was proved on a GPU: see "auto" in operator.py.
LAUNCHES = {
    16: Launch(64, (4, 4, 8, 4, 8), 2),
    32: Launch(64, (4, 4, 8, 4, 8), 2),
    64: Launch(64, (4, 4, 8, 4, 8), 2),
    128: Launch(64, (8, 8, 8, 8, 8), 1, values=32, output_values=64),
    256: Launch(16, (8, 8, 8, 8, 8), 1),
}
FAVOR_LAUNCHES = {
    16: Launch(64, (4, 4, 8, 4, 8), 2),
    32: Launch(64, (4, 4, 8, 4, 8), 2),
    64: Launch(32, (4, 4, 8, 4, 8), 2),
    128: Launch(32, (8, 8, 8, 8, 8), 1, channels=32, values=64),
    256: Launch(16, (8, 8, 8, 8, 8), 1),
}
# Before Hopper factors of products are in registers, all of them at once.
SHORT_LAUNCHES = {
    16: Launch(32, (4, 4, 4, 4, 4), 2, channels=32, values=64),
    32: Launch(32, (4, 4, 4, 4, 4), 2, channels=32, values=64),
    64: Launch(32, (4, 4, 4, 4, 4), 3, channels=32, values=64),
    128: Launch(32, (8, 8, 8, 8, 8), 1, channels=32, values=64),
    256: Launch(16, (8, 8, 8, 8, 8), 1, channels=32, values=64),
}
HOPPER = 9, 0


def capability(device: torch.device) -> tuple[int, int]:
    """Of a GPU; on a CPU, where kernels are interpreted, as of a new one."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else HOPPER


def tile(width: int) -> int:
    """The width of the tile for ``width`` numbers: a power of two."""
    size = SMALLEST_TILE
    while size < width:  # which compilers can follow
        size *= 2
    return size


def allows_tf32() -> bool:
    """Whether the user allows TensorFloat-32 for products of float32."""
    matmul: Any = torch.backends.cuda.matmul
    # Since PyTorch 2.9 the older attribute raises an error where the newer one was set.
    return bool(matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32)


def card(device: torch.device) -> str:
    """The name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"


TUNED = "triton-launches.json"


@cache
def tuned(device: torch.device) -> dict[str, Launch]:
    """What linear_rope.tune found for a device, by rows of :class:`Size`."""
    entries = kept.load(kept.directory() / TUNED).get(card(device), {})
    fields = set(Launch._fields)  # of another version there can be others, or fewer
    return {
        row: Launch(**entry | {"warps": tuple(entry["warps"])})
        for row, entry in entries.items()
        if fields - set(Launch._field_defaults) <= entry.keys() <= fields
    }


class Size(NamedTuple):
    """What of a call its launch depends on.

    Attributes:
        formula: of the feature map.
        features, values: M and Dv.
        dtypes: of q, k and v.
        causal: whether queries see only keys up to their own.
    """

    formula: str
    features: int
    values: int
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    causal: bool

    @property
    def row(self) -> str:
        """What sizes have in common that are tuned as one."""
        formula = "favor+" if self.formula == "favor+" else "other"
        dtype = "bfloat16" if set(self.dtypes) == {torch.bfloat16} else "float32"
        way = "causal" if self.causal else "both ways"
        return f"{formula} {tile(self.features)}-{tile(self.values)} {dtype} {way}"


def size_of(call: Call) -> Size:
    """That of a call."""
    return Size(call.formula, call.features, call.v.shape[-1], (call.q.dtype, call.k.dtype, call.v.dtype), call.causal)


def denominator_of(call: Call) -> str:
    """What the kernels sum below the fraction; see DENOMINATOR of ``Inputs`` in tiles.py."""
    if call.denominator == "none":
        return "none"
    if call.denominator_q is not None:
        return "own"
    return "mapped" if call.denominator == "unrotated" and call.q_rotation is not None else "shared"


def launch_of(size: Size, device: torch.device) -> Launch:
    """The settings for a size: those that were tuned on the card at hand, or else built in."""
    launches = FAVOR_LAUNCHES if size.formula == "favor+" else LAUNCHES
    if capability(device) < HOPPER:
        launches = SHORT_LAUNCHES
    widest = max(tile(size.features), tile(size.values))
    if widest not in launches:
        raise ValueError(
            f"there are {size.features} features and values of width {size.values}; implementation "
            f'"triton" needs at most {max(launches)} of each, choose "chunked"'
        )
    return tuned(device).get(size.row) or launches[widest]


def step_of(call: Call) -> tuple[int, int]:
    """The values of a program that takes one position, and its warps."""
    features, values = tile(call.features), tile(call.v.shape[-1])
    block = max(SMALLEST_TILE, min(values, NUMBERS_OF_STEP // features))
    projected = features * tile(call.q.shape[-1]) if call.formula == "favor+" else 0
    return block, min(16, max(4, projected // NUMBERS_OF_STEP * 4))


def pieces_of(length: int, heads: int, chunk: int) -> tuple[int, int]:
    """The pieces that a sequence is cut into and the chunks of each but the last.

    Never by the number of sequences: what one gives is the same beside any others.
    """
    chunks = -(-length // chunk)
    wanted = max(1, min(PIECES_TIMES_HEADS // heads, chunks // CHUNKS_OF_PIECE))
    each = -(-chunks // wanted)
    return -(-chunks // each), each
