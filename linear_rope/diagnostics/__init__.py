"""What attention does: how it depends on distance, and how healthy it is on a live model."""

from linear_rope.diagnostics.distance import attention_maps, expected_rope_mask, rope_decay_bound, weight_by_distance
from linear_rope.diagnostics.health import AttentionCollapseWarning, AttentionDiagnostics, RowSums
from linear_rope.diagnostics.live import diagnose, diagnose_model

__all__ = [
    "AttentionCollapseWarning",
    "AttentionDiagnostics",
    "RowSums",
    "attention_maps",
    "diagnose",
    "diagnose_model",
    "expected_rope_mask",
    "rope_decay_bound",
    "weight_by_distance",
]
