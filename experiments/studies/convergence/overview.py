"""The variants of a first look: all of a small comparison; else softmax attention without and with RoPE, and the best
RoPE variant of each map."""

from experiments.show.rows import Rows
from experiments.show.words import ranking

SOFTMAX = ("softmax-none", "softmax-rope")
MAPS = ("favor+", "elu+1", "relu")
ROPE = ("rope-before", "rope-after")
MOST_LINES = 7
"""of a comparison that is shown whole"""


def variants(rows: Rows) -> list[str]:
    """Their names, the best first; none if one of them was not trained to the end."""
    if rows.comparison.objective.better != "lower":
        return []
    ranked = list(ranking(rows))
    if len(rows.variants) <= MOST_LINES:
        return ranked if 1 < len(rows.variants) == len(ranked) else []
    of_maps = [[name for name in ranked if name in {f"{each}-{rope}" for rope in ROPE}][:1] for each in MAPS]
    chosen = {*SOFTMAX, *(name for names in of_maps for name in names)} & {*ranked}
    return [name for name in ranked if name in chosen] if len(chosen) == len(SOFTMAX) + len(MAPS) else []
