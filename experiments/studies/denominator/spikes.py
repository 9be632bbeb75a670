"""Spikes of a training loss, counted from the record."""

import pandas as pd

BEFORE = 10
"""records whose mean a record is compared with"""
HEIGHT = 0.5
"""bits per byte above that mean"""


def spike_share(losses: "pd.Series[float]") -> float:
    """The share of the records that lie at least ``HEIGHT`` above the mean of the ``BEFORE`` records before them.

    Args:
        losses: training bits per byte by step, ascending; more than ``BEFORE`` of them.
    """
    before = losses.rolling(BEFORE).mean().shift(1)
    return float((losses - before >= HEIGHT)[before.notna()].mean())
