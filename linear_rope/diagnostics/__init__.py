"""What attention does: how it depends on distance, and its statistics on a live model."""

from linear_rope.diagnostics.diagnose import diagnose, diagnose_model
from linear_rope.diagnostics.distance import attention_maps, expected_rope_mask, rope_decay_bound, weight_by_distance
from linear_rope.diagnostics.statistics import AttentionCollapseWarning, AttentionDiagnostics, RowSums

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
