"""Learned tables of positions."""

from torch import nn


class PositionTable(nn.Embedding):
    """A learned vector for each position, distance or word: parameters that a position encoding is compared for.

    Whoever counts the parameters of models to compare them counts these beside the others.
    """
