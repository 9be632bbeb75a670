"""What linear_attention refuses: the message names the argument, what came, and what would do."""

from typing import Any

import pytest
import torch

from linear_rope import EluPlusOne, FavorPlus, linear_attention

D, M = 4, 6
QKV = (1, 2, 5, D)


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        ((QKV, QKV, QKV), {"rope": "later"}, ["rope", "'later'", "'after'", "'before'", "'none'"]),
        ((QKV, QKV, QKV), {"denominator": "one"}, ["denominator", "'one'", "'unrotated'", "'rotated'", "'none'"]),
        ((QKV, QKV, QKV), {"implementation": "fast"}, ["implementation", "'fast'", "auto", "reference", "chunked"]),
        ((QKV, QKV, QKV), {"feature_map": FavorPlus(D, 7)}, ["num_features", "7", "8"]),
        ((QKV, QKV, QKV), {"feature_map": FavorPlus(6, 8)}, ["head_dim 6", "head_dim=4"]),
        (((1, 2, 5, 3),) * 3, {"feature_map": EluPlusOne(), "rope": "before"}, ["head dimension", "3", "4"]),
        (((2, 5, D), QKV, QKV), {}, ["q", "(2, 5, 4)", "(batch, heads, length, width)"]),
        ((QKV, (1, 2, 5, 6), QKV), {}, ["q", "k", "(1, 2, 5, 6)", "equal"]),
        ((QKV, QKV, (1, 2, 6, D)), {}, ["k", "v", "(1, 2, 6, 4)", "equal"]),
        ((QKV, (1, 2, 0, D), (1, 2, 0, D)), {}, ["k", "length 0"]),
        ((QKV, (1, 2, 6, D), (1, 2, 6, D)), {"causal": True}, ["causal", "5 queries", "6 keys"]),
        ((QKV, (1, 2, 6, D), (1, 2, 6, D)), {"positions": torch.arange(5)}, ["positions", "5", "6", "pair"]),
        ((QKV, QKV, QKV), {"positions": torch.arange(4)}, ["positions", "(4,)", "(5,)"]),
        ((QKV, QKV, QKV), {"rope_base": -1.0}, ["base", "-1.0", "positive"]),
        ((QKV, QKV, QKV), {"key_padding_mask": torch.zeros(1, 5)}, ["key_padding_mask", "float32", "torch.bool"]),
        ((QKV, QKV, QKV), {"key_padding_mask": torch.zeros(1, 6).bool()}, ["key_padding_mask", "(1, 6)", "(1, 5)"]),
    ],
)
def test_wrong_arguments(shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"give|choose|make|equal|needs") as error:
        linear_attention(*map(torch.zeros, shapes), **{"feature_map": FavorPlus(D, M)} | options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_integers_are_refused() -> None:
    q, k, v = (torch.zeros(QKV, dtype=torch.int64) for _ in range(3))
    with pytest.raises(ValueError, match=r"q has dtype torch\.int64; give a floating-point tensor"):
        linear_attention(q, k, v, feature_map=EluPlusOne())
