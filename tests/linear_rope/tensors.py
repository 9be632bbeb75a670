"""What the library's tests share: seeded tensors, comparisons, and the cases in which each guarantee is tested."""

from typing import Any

import torch
from torch import Tensor

FAST = ("chunked", "recurrent")
FORMS = ("reference", *FAST)
# Without a rotation after the map there is one denominator.
SETTINGS = [("after", name) for name in ("unrotated", "rotated", "none")]
SETTINGS += [(rope, name) for rope in ("before", "none") for name in ("unrotated", "none")]


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_qkv(
    batch: int, heads: int, queries: int, keys: int | None = None, width: int = 4, seed: int = 0
) -> list[Tensor]:
    lengths = (queries, keys or queries, keys or queries)
    return [random(batch, heads, length, width, seed=3 * seed + i) for i, length in enumerate(lengths)]


def some_padding(batch: int, length: int, seed: int = 0) -> Tensor:
    """Scattered padding that leaves the first sequence whole, and of the others the first token at least."""
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(seed)) < 0.3
    mask[0] = mask[:, 0] = False
    return mask


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Relative to the largest expected value."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * float(expected.detach().abs().max()))


def assert_identical(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def in_steps(module: Any, x: Tensor, prompt: int, key_padding_mask: Tensor | None = None) -> Tensor:
    """The output for x when the prompt is read at once and the rest token by token."""
    y, state = module.prefill(x[:, :prompt], key_padding_mask=key_padding_mask)
    outputs = [y]
    for index in range(prompt, x.shape[1]):
        y, state = module.step(x[:, index : index + 1], state)
        outputs.append(y)
    return torch.cat(outputs, dim=1)
