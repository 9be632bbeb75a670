"""Figures look alike whatever a user's matplotlibrc says, and a PNG has the colours that were drawn."""

import os
import subprocess
import sys

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from experiments.show.colours import colour
from experiments.show.style import label, save_figure, style, variant_style
from experiments.variants import VARIANTS

DRAW = """
import sys
from pathlib import Path
from matplotlib.figure import Figure
from experiments.show.style import save_figure

def make():
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([1, 2], label="a_b")
    figure.axes[0].set_title("favor+ & $x$")
    return figure

save_figure(make, Path(sys.argv[1]), "figure")
"""
USERS = (
    "text.usetex: True\nbackend: TkAgg\nfont.size: 30\naxes.facecolor: black\nlines.linewidth: 9\nsvg.fonttype: none\n"
)


def test_a_users_matplotlibrc_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "matplotlibrc").write_text(USERS)
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "none"), "MATPLOTLIBRC": str(tmp_path)}
    subprocess.run([sys.executable, "-c", DRAW, tmp_path / "users"], check=True, env=environment)
    monkeypatch.setattr(sys, "argv", ["", tmp_path / "plain"])
    exec(DRAW, {})
    for kind in ("png", "svg"):
        assert len({(tmp_path / name / f"figure.{kind}").read_bytes() for name in ("users", "plain")}) == 1


def test_a_png_keeps_every_colour_apart(tmp_path):
    kernels = ("relu", "elu+1", "favor+", "softmax", "retention", "delta", "taylor", "hedgehog")
    colours = [colour(kernel, position) for kernel in kernels for position in ("none", "rope-before", "rope-after")]

    def make():
        figure = Figure(figsize=(2, 2))
        axes = figure.subplots()
        for place, each in enumerate(colours):
            axes.plot([0, 1], [3 * place, 3 * place], color=each, linewidth=2)
        axes.imshow(np.random.default_rng(0).random((20, 20, 3)), extent=(0, 1, -40, -1), aspect="auto")
        axes.set_ylim(-40, 75)
        return figure

    save_figure(make, tmp_path, "figure")
    with Image.open(tmp_path / "figure.png") as image:
        found = {"#{:02x}{:02x}{:02x}".format(*each) for _, each in image.convert("RGB").getcolors(1 << 24)}
    assert set(colours) <= found


def test_variants_of_a_kernel_are_told_apart_without_colour():
    for kernel in {variant.kernel for variant in VARIANTS.values()}:
        looks = [variant_style(variant) for variant in VARIANTS.values() if variant.kernel == kernel]
        assert len({look["marker"] for look in looks}) == len(looks)
        assert len({str(look["linestyle"]) for look in looks}) == len(looks)


def test_names_in_figures_are_plain_short_and_visible():
    assert label("a\nb\x07") == r"a b\x07"
    assert label("_hidden") == " _hidden"
    assert label("n" * 43) == "n" * 41 + "…"
    with style():
        assert not Figure().text(0, 0, "$x$").get_parse_math()
