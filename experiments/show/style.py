"""What all figures of the suite share: their look, how variants are told apart, and how they are saved.

A variant's colour stands for its attention kernel by its hue and for its way of telling positions by its darkness
(colours.py); so do its line style and marker, so that a figure also reads in grey.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import LogFormatterSciNotation
from PIL import Image

from experiments.records.files import visible, write_atomically
from experiments.records.schema import VariantRecord
from experiments.show.colours import LOOKS, PAPER, colour

LINES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#d04a02", "linestyle": (0, (5, 2)), "marker": "^"},
    {"color": "#0072B2", "linestyle": (0, (1, 1.2)), "marker": "s"},
    {"color": "#008561", "linestyle": (0, (6, 2, 1, 2)), "marker": "D"},
    {"color": "#b8458b", "linestyle": (0, (3, 1)), "marker": "v"},
    {"color": "#8a6a00", "linestyle": (0, (4, 1, 1, 1, 1, 1)), "marker": "P"},
    {"color": "#c1121f", "linestyle": (0, (8, 2)), "marker": "X"},
)
"""by place in a list"""

STYLE: Any = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 4.4,
    "svg.hashsalt": "linear-rope",
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
}
DOTS_PER_INCH = 150
MUTED = "#5f5f5f"
LONGEST_LABEL = 42
"""characters of a name in a figure"""


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings under which figures are made, as a context."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever a user's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        # A name may be in a script that the font lacks; the tables have it.
        warnings.filterwarnings("ignore", r"Glyph \d+", UserWarning)
        yield


def label(name: str, longest: int = LONGEST_LABEL) -> str:
    """A name as a figure shows it: on one line, nothing invisible in it, cut if it is very long."""
    shown = " ".join(visible(name).split())
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    # Matplotlib leaves what begins with an underscore out of legends.
    return f" {shown}" if shown.startswith("_") else shown


def setting_in_words(setting: str, value: str) -> str:
    """A setting as a figure says it; empty of what nobody needs to be told."""
    words = LOOKS["figures"].get(setting, {"any": f"{setting.replace('_', ' ')} {{}}"})
    return str(words.get(value, words["any"])).format(value)


def legend_label(name: str) -> str:
    """A variant's name as a legend shows it: its settings in words, on a line of their own if it is long."""
    base, *settings = name.split("@")
    words = [setting_in_words(*each.partition("=")[::2]) for each in settings]
    shown = label(", ".join([base, *filter(None, words)]), 60)
    return shown.replace(", ", ",\n", 1) if settings and len(shown) > 24 else shown


class PowersOfTen(LogFormatterSciNotation):
    """Labels of a logarithmic axis such as 10⁻³ and 2×10⁻³, in plain text."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = super().__call__(x, pos).replace(r"\times", "×")
        text = re.sub(r"10\^\{(.*?)\}", lambda power: f"10{power[1].translate(_SUPERSCRIPTS)}", text)
        return re.sub(r"^\$\\mathdefault\{(.*)\}\$$", r"\1", text).replace("-", "\N{MINUS SIGN}")


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def label_powers_of_ten(axes: Axes) -> None:
    """Label a logarithmic vertical axis in plain text."""
    axes.yaxis.set_major_formatter(PowersOfTen())
    if axes.get_yscale() == "log":
        axes.yaxis.set_minor_formatter(PowersOfTen(labelOnlyBase=False))


def variant_style(variant: VariantRecord) -> dict[str, Any]:
    """Keyword arguments of ``Axes.plot`` for a variant."""
    return kernel_style(variant.kernel, variant.position) | {"color": variant_colour(variant)}


def variant_colour(variant: VariantRecord, paper: str = PAPER) -> str:
    return colour(variant.kernel, variant.position, paper, variant.settings.get("decay", "none"))


def kernel_style(kernel: str, position: str) -> dict[str, Any]:
    """The same for a kernel with a position encoding."""
    dashes, marker = dashes_of(position), LOOKS["positions"].get(position, {}).get("marker", "P")
    return {"color": colour(kernel, position), "linestyle": (0, dashes) if dashes else "-", "marker": marker}


def dashes_of(position: str) -> list[float]:
    """The lengths of a line's dashes and gaps; none of a solid one."""
    return [*LOOKS["positions"].get(position, {}).get("dashes", ())]


def look_of(place: int) -> dict[str, Any]:
    """The look of the value at a place of a list: no two are alike among the first seven times seven."""
    number, again = place % len(LINES), place // len(LINES)
    other = LINES[(number + again) % len(LINES)]
    return {**other, "color": LINES[number]["color"]}


def save_figure(make: Callable[[], Figure | None], directory: Path, stem: str) -> bool:
    """Make a figure in the suite's style and write ``<stem>.png`` (150 dots per inch) and ``<stem>.svg``.

    Equal figures give equal bytes. False: there was nothing to draw.
    """
    with style():
        figure = make()
        if figure is None:
            return False
        directory.mkdir(parents=True, exist_ok=True)
        figure.set_dpi(DOTS_PER_INCH)  # text is wider at some resolutions than at others
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        figure.set_layout_engine("none")  # the layout is found once for both files
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        content = io.BytesIO()
        with_palette(np.asarray(image), colours_of(figure)).save(content, "png", optimize=True)
        write_atomically(directory / f"{stem}.png", content.getvalue())
        content = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None, "Creator": None})
        write_atomically(directory / f"{stem}.svg", content.getvalue())
    return True


def colours_of(figure: Figure) -> list[tuple[int, int, int]]:
    """Those of its lines and texts."""
    artists: list[Any] = [artist for kind in (Line2D, Text) for artist in figure.findobj(kind)]
    found = [artist.get_color() for artist in artists]
    shares = sorted({matplotlib.colors.to_rgb(each) for each in found if isinstance(each, str | tuple)})
    return [(round(255 * red), round(255 * green), round(255 * blue)) for red, green, blue in shares]


def with_palette(pixels: Any, kept: Sequence[tuple[int, int, int]]) -> Image.Image:
    """A picture of 256 colours: those that are ``kept``, and the most frequent; every other one is its nearest.

    A quarter of the bytes, and the same to the eye.
    """
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    values, places, counts = np.unique(packed, return_inverse=True, return_counts=True)
    own = [red << 16 | green << 8 | blue for red, green, blue in kept]
    palette = list(dict.fromkeys([*own, *values[np.argsort(-counts, kind="stable")].tolist()]))[:256]

    def channels(colours: Any) -> Any:
        return np.stack([np.asarray(colours) >> shift & 255 for shift in (16, 8, 0)], axis=-1).astype(int)

    apart = ((channels(values)[:, None] - channels(palette)) ** 2).sum(axis=-1)
    image = Image.fromarray(apart.argmin(axis=1).astype(np.uint8)[places].reshape(packed.shape), "P")
    image.putpalette(channels(palette).astype(np.uint8).tobytes())
    return image
