"""The pictures of a sweep as SVG for its page: coloured by the page's CSS, and brought to life by its script.

A mark's `data-job` is its job. A line's `data-at` has its places on the axes, from 0 at the top to 1000, empty where it
has none; that is what the script needs to find the line under the pointer, and those within a brushed range.
"""

from __future__ import annotations

from html import escape

from runner.report.leaderboard import Board, Row
from runner.report.leaderboard_axes import Axis, fitted, from_worst, medians, metric, parameters, shades
from runner.report.leaderboard_table import cut

WIDTH, HEIGHT = 1180, 360  # of parallel coordinates; all sizes in pixels at their natural size
NARROWEST, WIDEST = 104, 340  # between two axes
LEFT, RIGHT, TOP, BOTTOM = 64, 96, 52, 40
NO_VALUE = HEIGHT - 14  # where lines of jobs without a value end
PANEL_WIDTH, PANEL_HEIGHT = 372, 250
PANEL_LEFT, PANEL_RIGHT, PANEL_TOP, PANEL_BOTTOM = 52, 14, 34, 40
STRIP = 16  # at the edge, for jobs that failed
CHARACTER = 6.2
MARK, BEST_MARK = 3.5, 5


def parallel(board: Board) -> str:
    """Parallel coordinates: a line a job through its parameters to the metric."""
    axes = [*parameters(board), metric(board)]
    gap = max(NARROWEST, min((WIDTH - LEFT - RIGHT) // max(1, len(axes) - 1), WIDEST))
    width = LEFT + gap * (len(axes) - 1) + RIGHT
    kinds = _kinds(board)
    lines = [_line(row, axes, gap, kinds[row.number]) for row in from_worst(board)]
    drawn = [_vertical(axis, LEFT + gap * index, index) for index, axis in enumerate(axes)]
    if any(row.value is None or row.is_lost for row in board.rows):
        x = LEFT + gap * (len(axes) - 1)
        drawn.append(f'<text class="tick" x="{x + 8}" y="{NO_VALUE + 4}">no value</text>')
    return (
        f'<svg class="parallel" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" role="img" '
        f'aria-label="Parallel coordinates of {len(board.rows)} jobs" data-left="{LEFT}" data-gap="{gap}" '
        f'data-top="{TOP}" data-height="{HEIGHT - TOP - BOTTOM}">'
        f"<g>{''.join(lines)}</g>{''.join(drawn)}</svg>"
    )


def panels(board: Board) -> list[str]:
    """The metric against each parameter."""
    return [_panel(board, axis) for axis in parameters(board)]


def _line(row: Row, axes: list[Axis], gap: int, kind: str) -> str:
    """Broken where the job does not have the parameter."""
    at = [axis.places.get(row.number) for axis in axes]
    path, is_down = [], False
    for index, place in enumerate(at):
        is_last = index == len(axes) - 1
        if place is None and not is_last:
            is_down = False
            continue
        y = float(NO_VALUE) if place is None else TOP + (1 - place) * (HEIGHT - TOP - BOTTOM)
        path.append(f"{'L' if is_down else 'M'}{LEFT + gap * index} {y:.1f}")
        is_down = True
    places = ",".join("" if place is None else f"{1000 * (1 - place):.0f}" for place in at)
    return f'<path class="{kind}" data-job="{row.number}" data-at="{places}" d="{"".join(path)}"/>'


def _vertical(axis: Axis, x: int, index: int) -> str:
    """An axis with its name, ticks and what can be dragged along it."""
    height = HEIGHT - TOP - BOTTOM
    group, _, name = axis.name.rpartition(".")
    ticks = "".join(
        f'<path d="M{x - 3} {(y := TOP + (1 - place) * height):.1f}h6"/>'
        f'<text class="tick" x="{x + 8}" y="{y + 4:.1f}">{escape(cut(label, 16))}</text>'
        for place, label in axis.scale.ticks
    )
    return (
        f'<g class="axis"><title>{escape(axis.name)}</title>'
        f'<text class="group" x="{x}" y="16" text-anchor="middle">{escape(cut(group, 20))}</text>'
        f'<text class="name" x="{x}" y="32" text-anchor="middle">{escape(cut(name, 19))}</text>'
        f'<path d="M{x} {TOP}v{height}"/>{ticks}'
        f'<rect class="brush" x="{x - 9}" width="18" y="0" height="0"/>'
        f'<rect class="grip" data-axis="{index}" x="{x - 18}" y="{TOP - 8}" width="36" height="{height + 16}"/></g>'
    )


def _panel(board: Board, axis: Axis) -> str:
    """One parameter; failed jobs are crosses at the worse edge."""
    values = metric(board)
    is_below = board.direction == "higher is better"
    strip = STRIP if any(row.is_lost for row in board.rows) else 0
    left, right = PANEL_LEFT, PANEL_WIDTH - PANEL_RIGHT
    top = PANEL_TOP + (0 if is_below else strip)
    bottom = PANEL_HEIGHT - PANEL_BOTTOM - (strip if is_below else 0)
    edge = bottom + strip - 4 if is_below else top - strip + 4

    def across(place: float) -> float:
        return left + 10 + place * (right - left - 20)

    def up(place: float) -> float:
        return bottom - 6 - place * (bottom - top - 12)

    parts = [
        f'<path class="rule" d="M{left} {up(place):.1f}H{right}"/>'
        f'<text class="tick" x="{left - 6}" y="{up(place) + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        for place, label in values.scale.ticks
    ]
    end = PANEL_HEIGHT - PANEL_BOTTOM
    labels = [(place, cut(label, 14)) for place, label in axis.scale.ticks]
    for place, label, row in fitted(labels, right - left - 20, CHARACTER, rows=2):
        parts.append(
            f'<path class="axis-tick" d="M{across(place):.1f} {end}v4"/>'
            f'<text class="tick" x="{across(place):.1f}" y="{end + 16 + 13 * row}" text-anchor="middle">{escape(label)}</text>'
        )
    parts.append(f'<path class="axis-line" d="M{left} {end}H{right}"/>')
    kinds = _kinds(board)
    for job in from_worst(board):
        if job.number not in axis.places:
            continue
        x = across(axis.places[job.number])
        if job.is_lost:
            parts.append(
                f'<path class="cross" data-job="{job.number}" data-x="{x:.1f}" data-y="{edge}" '
                f'd="M{x - 3:.1f} {edge - 3}l6 6m0-6l-6 6"/>'
            )
        elif job.number in values.places:
            y, kind = up(values.places[job.number]), kinds[job.number]
            parts.append(
                f'<circle class="{kind}" data-job="{job.number}" cx="{x:.1f}" cy="{y:.1f}" r="{MARK if kind != "best" else BEST_MARK}"/>'
            )
    middle = [
        (across(place), up(at))
        for place, value in medians(board, axis)
        if (at := values.scale.place(value)) is not None
    ]
    if middle:
        dashes = "".join(f"M{x - 9:.1f} {y:.1f}h18" for x, y in middle)
        through = "" if axis.scale.names else "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in middle)
        parts.append(f'<path class="median" d="{dashes}"/><path class="through" d="{through}"/>')
    is_log = " · log" if axis.scale.kind.value == "log" else ""
    return (
        f'<svg class="panel" viewBox="0 0 {PANEL_WIDTH} {PANEL_HEIGHT}" role="img" '
        f'aria-label="{escape(board.monitor)} against {escape(axis.name)}">'
        f'<text class="name" x="8" y="18">{escape(cut(axis.name, 40))}<tspan class="group">{is_log}</tspan></text>'
        f"{''.join(parts)}</svg>"
    )


def _kinds(board: Board) -> dict[int, str]:
    """CSS classes of each job's marks."""
    ranked, shade = board.ranked, shades(board)
    kinds = {row.number: "lost" for row in board.rows}
    for row in ranked:
        kinds[row.number] = f"s{shade[row.number]}{' pruned' if row.status == 'PRUNED' else ''}"
    return kinds | {row.number: "best" for row in ranked[:1]}
