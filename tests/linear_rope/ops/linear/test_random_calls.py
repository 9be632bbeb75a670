"""Random calls of kernels, with all that a call can have, against the oracle in float64."""

import random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from linear_rope import EluPlusOne, FavorPlus, ReluFeatures, linear_attention
from linear_rope.features import GivenFeatures
from linear_rope.ops.linear.call import Call
from linear_rope.ops.linear.operator import with_state
from linear_rope.ops.linear.prepare import Rotation, prepare
from linear_rope.positions.rotary import ROPE
from tests.linear_rope.tensors import FORMS, SCALINGS

pytestmark = pytest.mark.skipif("native" not in FORMS, reason="no native kernel here")

MAPS = {
    "favor+": lambda width, features: FavorPlus(width, features),
    "favor+hyperbolic": lambda width, features: FavorPlus(width, features, hyperbolic=True),
    "favor+paired": lambda width, features: FavorPlus(width, features, paired=True),
    "elu+1": lambda width, features: EluPlusOne(),
    "elu+1+paired": lambda width, features: EluPlusOne(paired=True),
    "relu": lambda width, features: ReluFeatures(eps=1e-2),
    "given": lambda width, features: GivenFeatures(),
}
LENGTHS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 255, 256, 257, 300)


class Sizes(NamedTuple):
    """What a call's sizes are chosen from; ``long`` every tenth call, and how often a call is causal."""

    batches: tuple[int, ...] = (1, 2, 3)
    heads: tuple[int, ...] = (1, 2, 5)
    lengths: tuple[int, ...] = LENGTHS
    long: tuple[int, ...] = (1024, 1100)
    widths: tuple[int, ...] = (2, 4, 6, 8, 16, 20, 34)
    values: tuple[int, ...] = (1, 3, 8, 16, 20, 33)
    features: tuple[int, ...] = (2, 6, 8, 16, 18, 34, 66)
    causal: float = 0.7


# In float32 an error of 6e-8 is divided by denominators that can be a hundredth of their terms' size, as after padding.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}


class Draw(random.Random):
    """Choices, and tensors in float64."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def happens(self, chance: float) -> bool:
        return self.random() < chance

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def between_0_and_1(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def repeated(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Now and then 1 in place of an axis or two, along which every number is repeated."""
        return tuple(1 if self.happens(0.07) else size for size in shape)

    def elsewhere(self, x: Tensor) -> Tensor:
        """The same numbers somewhere else in memory: behind others, spread out, or with the heads inside."""
        way = self.randrange(4)
        if way == 0:
            return torch.cat((x, x), dim=-1)[..., x.shape[-1] :]
        if way == 1:
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if way == 2:
            return x.repeat_interleave(2, dim=-1)[..., ::2]
        return x


def in_two_parts(at: int, qkv: list[Tensor], *, implementation: str, causal: bool, **options: Any) -> Tensor:
    """The causal output of which the positions from ``at`` on follow the state of those before."""
    axes = {"key_padding_mask": -1, "positions": -1, "log_decay": 2, "angles": -2}
    rows, state, length = [], None, qkv[0].shape[2]
    for start, size in ((0, at), (at, length - at)):
        own = {name: x.narrow(axes[name], start, size) for name, x in options.items() if isinstance(x, Tensor)}
        parts = [x.narrow(2, start, size) for x in qkv]
        given = options | own
        rotation = Rotation(given.pop("rope"), ROPE._replace(scaling=given.pop("rope_scaling")), given.pop("angles"))
        of_call = {name: given.pop(name) for name in ("log_decay", "denominator", "feature_map") if name in given}
        output, state = with_state(prepare(Call(*parts, **of_call), rotation=rotation, **given), state, implementation)
        rows.append(output.to(qkv[2].dtype))
    return torch.cat(rows, dim=2)


def compare(seed: int, dtype: torch.dtype, form: str = "native", sizes: Sizes = Sizes()) -> None:  # noqa: B008
    """One random call, its output and gradients."""
    draw = Draw(seed)
    batch, heads, length = draw.choice(sizes.batches), draw.choice(sizes.heads), draw.choice(sizes.lengths)
    if seed % 10 == 0:  # few heads, whose sequences are worked on in pieces
        batch, heads, length = 1, draw.choice((1, 2)), draw.choice(sizes.long)
    width, values = draw.choice(sizes.widths), draw.choice(sizes.values)
    kind, features = draw.choice(sorted(MAPS)), draw.choice(sizes.features)
    feature_map = MAPS[kind](width, features)
    # What is rotated before it is given is not positive.
    rope = draw.choice(("after", "none") if kind == "given" else ("after", "before", "none"))
    denominator = draw.choice(("unrotated", "rotated", "none"))
    # Sums of signed weights can come close to zero, where rounding is anything; not so if angles are small.
    turn = 0.1 if (rope, denominator) == ("after", "rotated") else 300
    causal = draw.happens(sizes.causal)
    keys = length if causal or draw.happens(0.5) else draw.choice(sizes.lengths)
    at = draw.randrange(1, length) if causal and length > 1 and draw.happens(0.3) else None
    padding = draw.between_0_and_1(batch, keys) < 0.3 if draw.happens(0.4) else None

    shapes = {
        "q": (batch, heads, length, width),
        "k": (batch, heads, keys, width),
        "v": (batch, heads, keys, values),
    }
    # Gradients of a repeated number are summed in its own precision, of which half is too little.
    repeats = dtype in (torch.float32, torch.float64)
    tensors = {name: draw.normal(*(draw.repeated(of) if repeats else of)) for name, of in shapes.items()}
    if kind == "given":
        tensors |= {name: tensors[name].abs() + 0.1 for name in "qk"}
    pair_denominator = "same"
    if keys == length and draw.happens(0.5):
        log_decay = -draw.between_0_and_1(batch, heads, length) * draw.choice((1e-4, 0.01, 1, 20))
        if draw.happens(0.3):
            log_decay[draw.between_0_and_1(batch, heads, length) < 0.1] = -torch.inf
        if draw.happens(0.5):
            log_decay = log_decay.unsqueeze(-1) - draw.between_0_and_1(
                batch, heads, length, feature_map.count(width) // 2
            ) * draw.choice((1e-4, 0.01, 1, 20))
            if draw.happens(0.3):
                log_decay[draw.between_0_and_1(*log_decay.shape) < 0.1] = -1e4
            if denominator == "unrotated" and draw.happens(0.5):
                pair_denominator = "head"
        tensors["log_decay"] = log_decay
    if rope != "none":
        kinds = ["positions"] + ["angles"] * (keys == length) + ["counted"] * (turn > 1 and at is None)
        how = draw.choice(kinds)
        first = draw.choice(((), (batch,)))
        if how == "angles":
            pairs = (feature_map.count(width) if rope == "after" else width) // 2
            of = draw.choice((1, batch)), draw.choice((1, heads))
            tensors["angles"] = draw.normal(*of, length, pairs) * min(turn, 3)
        elif how == "positions":
            tensors["positions"] = draw.between_0_and_1(*first, length) * turn
            if keys != length:
                tensors["key_positions"] = draw.between_0_and_1(*first, keys) * turn

    is_scaled = rope != "none" and "angles" not in tensors and seed % 3 == 0
    scaling = list(SCALINGS.values())[seed % 9 // 3] if is_scaled else None

    # The kernel rotates by itself what turns by numbers that need no gradient.
    learned = {*shapes, "log_decay", *(("positions", "key_positions", "angles") if draw.happens(0.3) else ())}
    fits = dtype != torch.float16 or denominator != "none"  # what is divided by nothing is too large
    dtype = dtype if fits else torch.bfloat16
    wide = torch.promote_types(dtype, torch.float32)
    kept = {name: dtype if name in shapes else wide for name in tensors}
    weights = draw.normal(batch, heads, length, values).to(dtype).double()
    found = []
    for name_of_form in ("reference", form):
        is_reference = name_of_form == "reference"
        leaves = {
            name: x.to(kept[name]).to(torch.float64 if is_reference else kept[name]).requires_grad_(name in learned)
            for name, x in tensors.items()
        }
        qkv = [leaves[name].expand(shape) for name, shape in shapes.items()]
        if not is_reference:
            qkv = [
                draw.elsewhere(x) if x.shape == leaves[name].shape else x for name, x in zip("qkv", qkv, strict=True)
            ]
        positions = leaves.get("positions")
        options: dict[str, Any] = {
            "feature_map": feature_map.to(torch.float64 if is_reference else wide),
            "rope": rope,
            "denominator": denominator,
            "causal": causal,
            "key_padding_mask": padding,
            "positions": (positions, leaves["key_positions"]) if "key_positions" in leaves else positions,
            "log_decay": leaves.get("log_decay"),
            "angles": leaves.get("angles"),
            "pair_denominator": pair_denominator,
            "rope_scaling": scaling,
            "implementation": name_of_form,
        }
        out = linear_attention(*qkv, **options) if at is None or is_reference else in_two_parts(at, qkv, **options)
        assert out.dtype == qkv[2].dtype
        wanted = {name: x for name, x in leaves.items() if x.requires_grad}
        gradients = torch.autograd.grad((out.double() * weights).sum(), list(wanted.values()), materialize_grads=True)
        found.append(dict(zip(("output", *wanted), (out.detach(), *gradients), strict=True)))
    expected, got = found
    # Where softmax-like quotients cancel, as with one key only, a gradient is zero: errors are of the largest of all.
    size = max(
        1e-6, *(float(expected[name].abs().max()) for name in expected if name in ("output", *shapes, "log_decay"))
    )
    for name, x in expected.items():
        off = float((x - got[name].double()).abs().max()) / max(size, float(x.abs().max()))
        call = seed, dtype, kind, rope, denominator, causal, (batch, heads, length, keys), width, features, values, at
        assert off <= TOLERANCES[dtype], (name, off, call, list(tensors), padding is not None)


@pytest.mark.parametrize("form", ["native", "chunked"])
def test_random_calls_agree_with_the_oracle(form: str) -> None:
    dtypes = torch.float64, torch.float32 if form == "native" else torch.bfloat16
    for seed in range(60):
        compare(seed, dtypes[seed // 2 % 2], form)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_random_calls_agree_with_the_oracle(part: int) -> None:
    dtypes = (torch.float64, torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for seed in range(100 + part, 1100, 4):
        compare(seed, dtypes[seed % len(dtypes)])
