"""The colour of a variant: its hue stands for the attention kernel and what it forgets, its darkness for positions.

A colour is defined by its contrast with the paper (WCAG 2.2, "contrast ratio"), so that every line can be seen on white
and, in the report's dark mode, on black: at least 3:1.
"""

import colorsys
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from experiments.study import read_toml

PAPER, DARK_PAPER = "#ffffff", "#15171a"
LOOKS: dict[str, dict[str, Any]] = read_toml(Path(__file__).with_name("looks.toml"))
"""of kernels, positions and decays, and what settings are called"""
GREY_HUE = 270
"""of what is grey, with a decay"""
OTHER_CONTRAST = 6.0


@cache
def colour(kernel: str, position: str, paper: str = PAPER, decay: str = "none") -> str:
    """The colour, ``#rrggbb``, of a kernel with a position encoding and a decay on ``paper``."""
    wanted = LOOKS["positions"].get(position, {}).get("contrast", OTHER_CONTRAST)
    if kernel == "softmax" and position == "rope-before":  # what everything is measured against
        wanted = 14.0
    shift, own = (LOOKS[what].get(name, {}).get("hue") for what, name in (("decays", decay), ("kernels", kernel)))
    hue = ((GREY_HUE if own is None else own) + (shift or 0)) % 360 / 360
    saturation = 0.85 if own is not None else 0.5 if shift else 0.0
    low, high = 0.0, 1.0
    for _ in range(20):  # contrast with white falls as lightness rises, with black it rises
        lightness = (low + high) / 2
        found = to_hex(colorsys.hls_to_rgb(hue, lightness, saturation))
        if (contrast(found, paper) < wanted) == (luminance(paper) > 0.5):
            high = lightness
        else:
            low = lightness
    return to_hex(colorsys.hls_to_rgb(hue, low if luminance(paper) > 0.5 else high, saturation))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``, 0 to 1."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
