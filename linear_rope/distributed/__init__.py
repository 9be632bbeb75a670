"""One sequence over many processes: each has a part of it, and only states of constant size pass between them."""

from linear_rope.distributed.linear_attention import linear_attention

__all__ = ["linear_attention"]
