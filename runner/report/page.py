"""The look of every plot: type, colours, a heading, and text that any font can set. Sizes are in inches."""

from __future__ import annotations

import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
WIDTH = 7.0
HEADING = 0.65  # height
BLUE, ORANGE = "#0072B2", "#D55E00"  # of Okabe and Ito 2008, told apart with any colour vision
INK, QUIET, RULE = "#222222", "#707070", "#e4e4e4"
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#b0b0b0",
    "axes.grid": True,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.monospace": "DejaVu Sans Mono",
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name is a dollar
    "text.usetex": False,
    "xtick.color": QUIET,
    "xtick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.color": QUIET,
    "ytick.labelsize": 8,
    "ytick.major.width": 0.6,
}


def page(what: str, detail: str, title: str, height: float, width: float = WIDTH) -> Figure:
    """A figure headed by what it shows, a detail of it, and the run's title below; `height` is of what follows."""
    from matplotlib.figure import Figure

    total = height + HEADING
    figure = Figure(figsize=(width, total), dpi=DPI)
    left = 0.15 / width
    figure.text(left, 1 - 0.25 / total, what, weight="bold", size=11)
    room = int(width * 15) - len(detail)  # the detail is never cut
    shown = f"{fitting(title, room)} · {detail}" if detail else fitting(title, room)
    figure.text(left, 1 - 0.44 / total, shown, color=QUIET, size=8)
    return figure


def area(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes at a place measured from the figure's lower left corner."""
    whole_width, whole_height = figure.get_size_inches()
    rectangle = (left / whole_width, bottom / whole_height, width / whole_width, height / whole_height)
    return figure.add_axes(rectangle)


def canvas(figure: Figure) -> Axes:
    """Bare axes over the whole figure, whose units are inches."""
    width, height = figure.get_size_inches()
    axes = area(figure, 0, 0, width, height)
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return axes


def clean(text: str) -> str:
    """The text with one visible character for each of its own: line ends as ↵, what cannot be set as a dot."""
    return "".join(_visible(character) for character in text)


def fitting(text: str, length: int) -> str:
    """Clean text of at most `length` characters."""
    return clean(text if len(text) <= length else text[: length - 1] + "…")


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def _visible(character: str) -> str:
    if character in "\n\t":
        return "↵" if character == "\n" else " "
    takes_no_place = unicodedata.category(character)[0] in "CMZ"
    return character if character == " " or (ord(character) in _glyphs() and not takes_no_place) else "·"


@cache
def _glyphs() -> set[int]:
    """The code points that both fonts have."""
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    names = ("DejaVuSans.ttf", "DejaVuSansMono.ttf")
    return set.intersection(
        *(set(FT2Font(f"{get_data_path()}/fonts/ttf/{name}").get_charmap()) for name in names)
    )
