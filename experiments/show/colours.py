"""The colour of a variant: its hue stands for the attention kernel and what it forgets, its darkness for positions.

A colour is defined by its contrast with the paper (WCAG 2.2, "contrast ratio"), so that every line can be seen on white
and, in the report's dark mode, on black: at least 3:1.
"""

import colorsys
from functools import cache

PAPER, DARK_PAPER = "#ffffff", "#15171a"
HUES = {
    "favor+": 20,
    "favor+hyperbolic": 330,
    "favor+paired": 45,
    "elu+1": 210,
    "elu+1+paired": 190,
    "relu": 164,
    "hedgehog": 100,
    "taylor": 240,
    "retention": 130,
    "delta": 300,
    "favor+window": 5,
    "performer-pytorch": 285,
}
"""degrees; softmax attention and kernels from outside the project are grey"""
DECAY_HUES = {"retnet": 15, "fixed": 30, "alibi": 45, "gate": 60}
"""degrees that are added with a decay; and what is grey has the hue of ``GREY_HUE`` then"""
GREY_HUE = 270
CONTRASTS = {
    "none": 3.2,
    "complex": 3.57,
    "sinusoidal": 4.0,
    "floater": 4.45,
    "learned": 5.0,
    "selective-before": 5.7,
    "rope-before": 6.5,
    "t5": 6.6,
    "alibi": 7.5,
    "selective-after": 8.4,
    "shaw": 8.5,
    "rope-after": 9.5,
    "huang": 9.5,
    "deberta": 10.6,
    "tupe": 11.9,
    "transformer-xl": 15.6,
    "xpos": 17.4,
}
"""with the paper; softmax attention with RoPE has 14"""
OTHER_CONTRAST = 6.0


@cache
def colour(kernel: str, position: str, paper: str = PAPER, decay: str = "none") -> str:
    """The colour, ``#rrggbb``, of a kernel with a position encoding and a decay on ``paper``."""
    wanted = CONTRASTS.get(position, OTHER_CONTRAST)
    if kernel == "softmax" and position == "rope-before":  # what everything is measured against
        wanted = 14.0
    shift, is_grey = DECAY_HUES.get(decay, 0), kernel not in HUES
    hue = (HUES.get(kernel, GREY_HUE) + shift) % 360 / 360
    saturation = (0.5 if shift else 0.0) if is_grey else 0.85
    low, high = 0.0, 1.0
    for _ in range(20):  # contrast with white falls as lightness rises, with black it rises
        lightness = (low + high) / 2
        found = _hex(*colorsys.hls_to_rgb(hue, lightness, saturation))
        if (contrast(found, paper) < wanted) == (luminance(paper) > 0.5):
            high = lightness
        else:
            low = lightness
    return _hex(*colorsys.hls_to_rgb(hue, low if luminance(paper) > 0.5 else high, saturation))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of ``#rrggbb``, 0 to 1."""
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _hex(*channels: float) -> str:
    return "#" + "".join(f"{round(255 * value):02x}" for value in channels)
