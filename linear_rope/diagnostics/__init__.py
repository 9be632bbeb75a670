"""What attention does: how it depends on distance."""

from linear_rope.diagnostics.distance import attention_maps, expected_rope_mask, rope_decay_bound, weight_by_distance

__all__ = ["attention_maps", "expected_rope_mask", "rope_decay_bound", "weight_by_distance"]
