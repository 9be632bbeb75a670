"""Every line of every figure can be seen on paper, white and dark, and variants of a kernel have their own colours."""

import itertools

import numpy as np
import pytest

from experiments.show.colours import DARK_PAPER, LOOKS, PAPER, colour, contrast
from experiments.show.style import LINES, MUTED
from experiments.variants import VARIANTS

LEAST = 3.0
KINDS = [*sorted({(variant.kernel, variant.position) for variant in VARIANTS.values()}), ("unknown", "other")]
IN_USE = {colour(*kind) for kind in KINDS}
IN_USE |= {look["color"] for look in LINES} | {MUTED}


def in_dark_mode(shown):
    """What ``invert(0.92) hue-rotate(180deg)`` of the report's style.css makes of a colour (Filter Effects 1)."""
    channels = np.array([int(shown[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    grey = np.tile([0.213, 0.715, 0.072], (3, 1))
    turned = (2 * grey - np.eye(3)) @ (0.92 - 0.84 * channels)  # the cosine is -1, the sine 0
    return "#" + "".join(f"{round(255 * value):02x}" for value in turned.clip(0, 1))


def test_every_line_can_be_seen_on_paper_in_dark_mode_and_on_dark_paper():
    decayed = {colour(*kind, decay=decay) for kind, decay in itertools.product(KINDS, LOOKS["decays"])}
    for shown in sorted(IN_USE | decayed):
        assert contrast(shown, PAPER) >= LEAST, shown
        assert contrast(in_dark_mode(shown), in_dark_mode(PAPER)) >= LEAST, shown
    for kind, decay in itertools.product(KINDS, ["none", *LOOKS["decays"]]):
        assert contrast(colour(*kind, DARK_PAPER, decay), DARK_PAPER) >= LEAST, kind
        assert decay == "none" or colour(*kind, decay=decay) != colour(*kind)


@pytest.mark.parametrize("paper", [PAPER, DARK_PAPER])
def test_variants_of_a_kernel_differ_in_colour(paper):
    for (kernel, one), (other, another) in itertools.combinations(KINDS, 2):
        if kernel == other:
            assert contrast(colour(kernel, one, paper), colour(kernel, another, paper)) > 1.1
