"""The arms of a comparison: every attention kernel with every way of telling it positions.

Names are `<attention>[-<feature map>]-<position>`. A new feature map or position encoding is one entry in
``KERNELS`` or ``POSITIONS``, besides what linear_rope needs to know of it.
"""

from dataclasses import dataclass
from typing import Literal

Position = Literal["none", "learned", "sinusoidal", "alibi", "rope-before", "rope-after"]

KERNELS: dict[str, str] = {
    "softmax": "Exact softmax attention, through PyTorch's scaled_dot_product_attention. Quadratic in the length.",
    "favor+": (
        "Performer attention (Choromanski et al. 2020): positive orthogonal random features whose products estimate "
        "the softmax kernel. Linear in the length; strictly causal, with a running-maximum stabiliser."
    ),
    "favor+hyperbolic": (
        "Performer attention with hyperbolic features (Choromanski et al. 2020): every random direction is used with "
        "both signs, which lowers the variance of the estimate."
    ),
    "favor+paired": (
        "Performer attention that uses every random feature twice, as both members of a pair that RoPE after the map "
        "rotates: as many features from half the draws, and no sine terms between unrelated features in the score."
    ),
    "elu+1": "Linear attention with the feature map elu(x) + 1 (Katharopoulos et al. 2020). No random features.",
    "elu+1+paired": (
        "Linear attention with the feature map elu(x) + 1 whose every feature is both members of a rotated pair: twice "
        "as many features. Without RoPE after the map it is elu+1 itself, so it has no other arm."
    ),
    "relu": "Linear attention with the feature map relu(x). No random features.",
}

POSITIONS: dict[Position, str] = {
    "none": "No position information besides the causal mask.",
    "learned": "A learned vector per absolute position is added to the token embedding (its table adds parameters).",
    "sinusoidal": "A fixed sinusoid per absolute position (Vaswani et al. 2017) is added to the token embedding.",
    "alibi": "Each score is lowered in proportion to the distance, by each head's slope (ALiBi, Press et al. 2021).",
    "rope-before": (
        "RoPE rotates queries and keys before the feature map, and so the denominator too, as performer-pytorch does."
    ),
    "rope-after": (
        "RoPE rotates the mapped queries and keys (RoFormer eq. 19): the weights can be negative and need not sum to 1."
    ),
}

SAME_WITHOUT_POSITIONS = {"elu+1+paired": "elu+1"}
"""kernels that are another one wherever RoPE does not rotate the mapped queries and keys"""

SOFTMAX_ROPE = "RoPE rotates queries and keys before their product (RoFormer eq. 16)."

PERFORMER_PYTORCH = (
    "performer-pytorch's own SelfAttention inside this suite's model, rotated before its feature map by its own rotary "
    "embedding. Its PerformerLM would also add an absolute embedding to the tokens; this arm does not, so that only "
    "the attention differs. Known: in causal mode its stabiliser is a maximum over all keys, so a little of the "
    "future leaks into the past, and so its loss is compared with no other arm's."
)


@dataclass(frozen=True)
class Variant:
    """One arm. ``baseline`` is what its gain is measured against: the same kernel without positions, or itself."""

    name: str
    kernel: str
    position: Position
    baseline: str
    description: str

    @property
    def is_softmax(self) -> bool:
        return self.kernel == "softmax"


def _go_together(kernel: str, position: Position) -> bool:
    if kernel == "softmax":
        return position != "rope-after"
    if kernel in SAME_WITHOUT_POSITIONS:
        return position == "rope-after"
    return position != "alibi"


def _all_variants() -> dict[str, Variant]:
    variants = []
    for kernel, kernel_text in KERNELS.items():
        for position, position_text in POSITIONS.items():
            name = f"{kernel}-{position}"
            if not _go_together(kernel, position):
                continue
            if kernel == "softmax" and position == "rope-before":
                name, position_text = "softmax-rope", SOFTMAX_ROPE
            baseline = f"{SAME_WITHOUT_POSITIONS.get(kernel, kernel)}-none"
            variants.append(Variant(name, kernel, position, baseline, f"{kernel_text} {position_text}"))
    peer = "performer-pytorch"
    variants.append(Variant(peer, peer, "rope-before", peer, PERFORMER_PYTORCH))
    return {variant.name: variant for variant in variants}


VARIANTS: dict[str, Variant] = _all_variants()

DEFAULT_ARMS = (
    "softmax-none",
    "softmax-rope",
    "favor+-none",
    "favor+-rope-before",
    "favor+-rope-after",
    "elu+1-none",
    "elu+1-rope-after",
)
"""softmax and both linear kernels with and without RoPE, and FAVOR+ with RoPE on both sides of its map"""


def parse_variants(names: str) -> tuple[Variant, ...]:
    """The variants of a comma-separated list, in its order.

    Raises ValueError that names the unknown or repeated one and lists those that exist.
    """
    chosen: list[Variant] = []
    for name in (part.strip() for part in names.split(",")):
        if name not in VARIANTS:
            raise ValueError(f"--variants: there is no variant {name!r}; choose from {', '.join(VARIANTS)}")
        if VARIANTS[name] in chosen:
            raise ValueError(f"--variants: {name} is named twice; name each variant once")
        chosen.append(VARIANTS[name])
    return tuple(chosen)
