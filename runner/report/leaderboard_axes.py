"""Where the jobs of a sweep stand on the axes of its pictures, whatever draws them. Places are from 0 to 1. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from runner.report.leaderboard import Board, Row
from runner.report.scale import Scale, as_number, scale_of

SHADES = 5
GOLDEN = 0.618033988749895  # its multiples spread evenly
SPREAD = 0.5  # of a name's room


@dataclass(frozen=True)
class Axis:
    """A parameter, or the metric, and the place of each job that has it, by the job's number."""

    name: str
    scale: Scale
    places: dict[int, float]
    is_numeric: bool = True  # also where numbers stand side by side as names do


def parameters(board: Board) -> list[Axis]:
    """The overrides that differ. Jobs of one name are spread around it, so that they do not hide each other."""
    return [_parameter(board, key) for key in board.columns]


def metric(board: Board) -> Axis:
    """Of the jobs that have a place in the leaderboard."""
    values = {row.number: row.value for row in board.ranked if row.value is not None}
    scale = scale_of(values.values())
    return Axis(board.monitor, scale, _places(scale, values))


def shades(board: Board) -> dict[int, int]:
    """By rank, not by value, so that an outlier leaves the others apart: 0 for the best fifth, SHADES − 1 for the worst."""
    ranked = board.ranked
    return {row.number: place * SHADES // len(ranked) for place, row in enumerate(ranked)}


def medians(board: Board, axis: Axis) -> list[tuple[float, float]]:
    """(place on the axis, median of the metric) for each of few values that jobs share; empty where they do not."""
    if not axis.scale.is_few:
        return []
    groups: dict[str, list[float]] = {}
    for row in board.ranked:
        value = row.overrides.get(axis.name)
        if value is not None and row.value is not None:
            groups.setdefault(value, []).append(row.value)
    if all(len(values) == 1 for values in groups.values()):
        return []
    placed = ((axis.scale.place(value), statistics.median(values)) for value, values in groups.items())
    return sorted((place, median) for place, median in placed if place is not None)


def from_worst(board: Board) -> list[Row]:
    """The order to draw in: what matters most comes last, on top."""
    return list(reversed(board.rows))


def fitted(
    ticks: Sequence[tuple[float, str]], width: float, character: float, rows: int = 1
) -> list[tuple[float, str, int]]:
    """(place, label, row) of the labels that stand side by side on `width`; one that meets another goes a row lower, or
    is left out where that is full too. `character` is the width of one."""
    ends = [-width] * rows
    found = []
    for place, label in ticks:
        half = len(label) * character / 2
        for row in range(rows):
            if place * width - half >= ends[row] + character:
                ends[row] = place * width + half
                found.append((place, label, row))
                break
    return found


def _parameter(board: Board, key: str) -> Axis:
    texts = {row.number: row.overrides[key] for row in board.rows if key in row.overrides}
    scale = scale_of(texts.values(), is_chosen=True)
    places = _places(scale, texts)
    if len(texts) > len(scale.names) > 0:
        room = SPREAD / len(scale.names)
        places = {job: place + room * (job * GOLDEN % 1 - 0.5) for job, place in places.items()}
    return Axis(key, scale, places, all(as_number(text) is not None for text in texts.values()))


def _places(scale: Scale, values: dict[int, str] | dict[int, float]) -> dict[int, float]:
    placed = {job: scale.place(value) for job, value in values.items()}
    return {job: place for job, place in placed.items() if place is not None}
