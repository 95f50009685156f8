"""The pictures of a sweep as PNGs: parallel coordinates, and the metric against each parameter."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING

from runner.report.leaderboard import Board, Row
from runner.report.leaderboard_axes import (
    Axis,
    fitted,
    from_worst,
    medians,
    metric,
    parameters,
    shades,
)
from runner.report.page import DPI, INK, ORANGE, QUIET, STYLE, WIDTH, area, canvas, fitting, page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RAMP = ("#004c78", "#1c7fb8", "#63a7d2", "#a3cae3", "#d3e3ee")  # the best fifth to the worst, all one hue
LOST, FAILED = "#9aa3ab", "#b3261e"
MOST = 12  # parameters that are drawn
GAP, HEIGHT = 1.25, 3.4  # inches between two axes of parallel coordinates, and of the whole
LEFT, RIGHT, BOTTOM, TOP = 0.55, 0.85, 0.4, 0.55
NO_VALUE = 0.15  # inches above the lower edge
PANEL_HEIGHT = 2.1
CHARACTER = 0.06  # inches
STRIP = 0.09  # of a panel's height, for jobs that failed


def draw(board: Board, folder: Path) -> None:
    """Write parallel.png and parameters.png; nothing where no parameter differs or no job has a value."""
    import matplotlib

    if not board.columns or not board.ranked:
        return
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it tells of its cache
    with matplotlib.rc_context(STYLE):
        for name, figure in (("parallel", parallel(board)), ("parameters", panels(board))):
            figure.savefig(folder / f"{name}.png", dpi=DPI)


def parallel(board: Board) -> Figure:
    """A line a job through its parameters to the metric; the best ones on top."""
    axes = [*parameters(board)[:MOST], metric(board)]
    width = max(WIDTH, LEFT + GAP * (len(axes) - 1) + RIGHT)
    gap = (width - LEFT - RIGHT) / (len(axes) - 1)
    figure = page("Every job", _detail(board, "dashed", "dotted: no value"), board.title, HEIGHT, width)
    paper = canvas(figure)
    height = HEIGHT - BOTTOM - TOP
    shade = shades(board)
    for order, row in enumerate(from_worst(board)):
        places = [axis.places.get(row.number) for axis in axes]
        ys = [math.nan if place is None else BOTTOM + place * height for place in places]
        if places[-1] is None:
            ys[-1] = NO_VALUE
        xs = [LEFT + gap * index for index in range(len(axes))]
        colour, line_width, line_style = _line(board, row, shade)
        paper.plot(xs, ys, color=colour, linewidth=line_width, linestyle=line_style, zorder=3 + order / 1e4)
    for index, axis in enumerate(axes):
        _vertical(paper, axis, LEFT + gap * index, height, int(gap * 11))
    if len(board.ranked) < len(board.rows):
        paper.text(LEFT + gap * (len(axes) - 1) + 0.07, NO_VALUE, "no value", size=7, va="center")
    return figure


def panels(board: Board) -> Figure:
    """One a parameter, failed jobs at the worse edge."""
    axes, values = parameters(board)[:MOST], metric(board)
    columns = min(3, len(axes))
    rows = math.ceil(len(axes) / columns)
    width, height = WIDTH / columns, PANEL_HEIGHT if columns > 1 else 3.2
    what = fitting(f"{board.monitor} against each parameter", 60)
    figure = page(what, _detail(board, "hollow", "× failed"), board.title, rows * height)
    for index, axis in enumerate(axes):
        row, column = divmod(index, columns)
        bottom = (rows - 1 - row) * height
        place = area(figure, column * width + 0.55, bottom + 0.45, width - 0.7, height - 0.8)
        _panel(place, board, axis, values, width - 0.7)
    return figure


def _detail(board: Board, pruned: str, lost: str) -> str:
    """What of the sweep is shown, which way is better, and what the marks mean."""
    columns = len(board.columns)
    parts = [f"{MOST} of {columns} parameters"] if columns > MOST else []
    parts += [f"{len(board.rows)} jobs", board.direction, "orange: the best"]
    parts += [f"{pruned}: pruned"] if any(row.status == "PRUNED" for row in board.rows) else []
    parts += [lost] if len(board.ranked) < len(board.rows) else []
    return ", ".join(parts)


def _line(board: Board, row: Row, shade: dict[int, int]) -> tuple[str, float, str]:
    """Colour, width and style."""
    if row.number not in shade:
        return LOST, 0.6, ":"
    if row is board.rows[0]:
        return ORANGE, 2.2, "-"
    return (
        RAMP[shade[row.number]],
        1.0 if shade[row.number] == 0 else 0.8,
        "--" if row.status == "PRUNED" else "-",
    )


def _vertical(paper: Axes, axis: Axis, x: float, height: float, length: int) -> None:
    import matplotlib.patheffects

    halo = [matplotlib.patheffects.withStroke(linewidth=2.2, foreground="white")]
    group, _, name = axis.name.rpartition(".")
    top = BOTTOM + height
    paper.plot([x, x], [BOTTOM, top], color=QUIET, linewidth=0.8, zorder=4)
    paper.text(x, top + 0.3, fitting(group, length), ha="center", size=7, color=QUIET)
    paper.text(x, top + 0.13, fitting(name, length), ha="center", size=8, color=INK, weight="bold")
    for place, label in axis.scale.ticks:
        y = BOTTOM + place * height
        paper.plot([x - 0.03, x + 0.03], [y, y], color=QUIET, linewidth=0.8, zorder=4)
        shown = fitting(label, length)
        paper.text(x + 0.07, y, shown, va="center", size=7, path_effects=halo, zorder=5)


def _panel(place: Axes, board: Board, axis: Axis, values: Axis, width: float) -> None:
    """Both axes go from 0 to 1, as the places do; the strip is beyond the worse end."""
    is_below = board.direction == "higher is better"
    strip = STRIP if board.lost else 0
    place.set(xlim=(-0.06, 1.06), ylim=(-0.05 - strip * is_below, 1.05 + strip * (not is_below)))
    heading = f"{axis.name} (log)" if axis.scale.kind.value == "log" else axis.name
    place.set_title(fitting(heading, int(width * 13)), size=8, loc="left", color=INK)
    place.grid(visible=False, axis="x")
    labels = [(at, fitting(label, 12)) for at, label in axis.scale.ticks]
    ticks = fitted(labels, width / 1.12, CHARACTER, rows=2)
    place.set_xticks([at for at, _, _ in ticks], ["\n" * row + label for _, label, row in ticks], size=7)
    place.set_yticks(*zip(*values.scale.ticks, strict=True) if values.places else ([], []))
    shade = shades(board)
    for order, row in enumerate(from_worst(board)):
        x, y = axis.places.get(row.number), values.places.get(row.number)
        if x is None:
            continue
        if row.is_lost:
            edge = -0.05 - strip / 2 if is_below else 1.05 + strip / 2
            place.plot(x, edge, "x", color=FAILED, markersize=3.5, markeredgewidth=0.8, clip_on=False)
        elif y is not None:
            colour, _, style = _line(board, row, shade)
            face = "white" if style == "--" else colour
            size = 6.0 if row is board.rows[0] else 3.5
            place.plot(x, y, "o", color=colour, markerfacecolor=face, markersize=size, zorder=3 + order / 1e4)
    middle = [(x, at) for x, value in medians(board, axis) if (at := values.scale.place(value)) is not None]
    for x, y in middle:
        place.plot([x - 0.05, x + 0.05], [y, y], color=INK, linewidth=1.4, zorder=5)
    if not axis.scale.names:
        place.plot([x for x, _ in middle], [y for _, y in middle], ":", color=INK, linewidth=0.8, zorder=5)
