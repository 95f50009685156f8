"""A sweep's leaderboard as a table: on screen, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from runner.report.console import Screen, relative
from runner.report.leaderboard import Board, Row
from runner.report.page import number

MISSING = "–"
SHOWN = 20  # rows on screen
OTHERS_SHOWN = 2  # other metrics on screen
WIDEST = 32  # characters of a value on screen


def show(board: Board, screen: Screen) -> None:
    """The best SHOWN rows, how many more there are, and every job that failed."""
    header, rows = table(board)
    if screen.width is not None and _width(header, rows) > screen.width:
        header, rows = narrow_table(board)
    screen.table(f"leaderboard of {board.title}: best {board.monitor}, {board.direction}", header, rows)
    for line in below(board):
        screen.line(line)


def table(board: Board) -> tuple[list[str], list[list[str]]]:
    """Header and rows on screen, a column a parameter; failed jobs are not among them."""
    columns, others = board.columns, board.others[:OTHERS_SHOWN]
    header = ["", "job", board.monitor, *columns, *others, "epochs", "time", "status"]
    rows = [
        [
            *_first(place, row),
            *(cut(row.overrides.get(key, MISSING)) for key in columns),
            *(number(row.metrics.get(name)) for name in others),
            number(row.epochs),
            duration(row.seconds),
            row.outcome,
        ]
        for place, row in _shown(board)
    ]
    return header, rows


def narrow_table(board: Board) -> tuple[list[str], list[list[str]]]:
    """The parameters in one column, for a terminal that is not wide enough."""
    rows = [[*_first(place, row), _chosen(board, row), row.outcome] for place, row in _shown(board)]
    return ["", "job", board.monitor, "overrides", "status"], rows


def below(board: Board) -> list[str]:
    """What stands under the table."""
    more = len(board.rows) - len(board.lost) - SHOWN
    lines = [f"… and {more} more"] if more > 0 else []
    lines.append(board.counts)
    for row in board.lost:
        said = row.reason or "it left no reason"
        log = f"  log {relative(Path(row.log))}" if row.log else ""
        lines.append(f"job {row.number} {row.status}: {said}  [{_chosen(board, row)}]{log}")
    return lines


def to_csv(board: Board) -> str:
    """All rows with all overrides; numbers in full."""
    keys, others = board.keys, board.others
    text = io.StringIO()
    writer = csv.writer(text)
    last = ("epochs", "seconds", "run_id", "cached", "reason", "log")
    writer.writerow(["rank", "job", "status", *keys, board.monitor, *others, *last])
    ranks = {row.number: place for place, row in enumerate(board.ranked, start=1)}
    for row in board.rows:
        overrides = [row.overrides.get(key) for key in keys]
        metrics = [row.metrics.get(name) for name in others]
        end = [getattr(row, name) for name in last]
        writer.writerow(
            [ranks.get(row.number), row.number, row.status, *overrides, row.value, *metrics, *end]
        )
    return text.getvalue()


def cut(text: str, length: int = WIDEST) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def duration(seconds: float | None) -> str:
    """48 s, 3.4 min, 2.1 h"""
    if seconds is None:
        return MISSING
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def _shown(board: Board) -> list[tuple[int, Row]]:
    """With their places."""
    return list(enumerate((row for row in board.rows if not row.is_lost), start=1))[:SHOWN]


def _first(place: int, row: Row) -> list[str]:
    return [MISSING if row.value is None else str(place), str(row.number), number(row.value)]


def _chosen(board: Board, row: Row) -> str:
    return " ".join(f"{key}={cut(row.overrides[key])}" for key in board.columns if key in row.overrides)


def _width(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Characters of the table with its frame."""
    return sum(max(map(len, column)) + 3 for column in zip(header, *rows, strict=True)) + 1
