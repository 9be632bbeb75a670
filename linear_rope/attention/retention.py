"""Retention: linear attention with neither map nor denominator, normalised head by head."""

from typing import Any, Literal, NoReturn, Unpack

from linear_rope.attention.linear import LinearRoPEAttention
from linear_rope.attention.settings import Shared, takes_shared
from linear_rope.checks import check_choice
from linear_rope.features.elementwise import GivenFeatures, SiluFeatures
from linear_rope.ops.linear.rotated_features import Rope
from linear_rope.positions.decay import Decay


class Retention(LinearRoPEAttention):
    """Multi-scale retention (RetNet: Sun et al. 2023, arXiv 2307.08621, eq. 5 to 8), its gate being ``output_gate``.

    Queries and keys are not mapped unless ``activation`` is "silu", and RoPE's rotation stands for the paper's; every
    head's output is divided by its root mean square, so a constant factor, as the paper's 1/√D or, without an
    activation, the gains of ``qk_norm``, changes nothing. ``output_norm`` adds gains to that norm.

    What is not told of here is as in :class:`LinearRoPEAttention`.

    Args:
        rope: "after", or "before", which is the same without a map, rotates queries and keys; "none".
        activation: "identity", or "silu" for the map x · σ(x).
        decay: as there; the paper's, 1 − 2^(−5−h) of head h, is the default.
    """

    norms_outputs = True

    @takes_shared
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        rope: Rope = "after",
        activation: Literal["identity", "silu"] = "identity",
        causal: bool = False,
        decay: str | Decay = "retnet",
        **shared: Unpack[Shared],
    ) -> None:
        check_choice("activation", activation, ("identity", "silu"))
        feature_map = GivenFeatures() if activation == "identity" else SiluFeatures()
        kernel: dict[str, Any] = {"feature_map": feature_map, "denominator": "none"}
        super().__init__(dim, heads, rope=rope, causal=causal, decay=decay, **kernel, **shared)

    @classmethod
    def recommended(cls, *_: Any, **__: Any) -> NoReturn:
        """Raises ValueError: what is recommended has a feature map."""
        raise ValueError("recommended gives a feature_map, which Retention does not take; make it without")
