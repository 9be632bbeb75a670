"""A variant: a kernel, a position encoding, and settings in which it differs from the comparison."""

from experiments.variants import Variant

FAST = Variant(
    name="squareplus-fast",
    kernel="squareplus",
    position="rope-after",
    baseline="squareplus-rope-after",
    description="squareplus with RoPE after the map, at a learning rate of 0.004.",
    settings={"learning_rate": 0.004},
)
