"""A sweep's leaderboard as files and on screen: what its launcher does at the end, and `python -m runner leaderboard` later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runner.report.console import Screen, relative
from runner.report.leaderboard import Board
from runner.report.leaderboard_table import show, to_csv
from runner.tracking import RunRecord

CSV, PAGE = "leaderboard.csv", "leaderboard.html"


def report(board: Board, folder: Path, parent: RunRecord, screen: Screen) -> None:
    """Show the board, write its files to `folder`, and log them as artifacts of the sweep's run."""
    show(board, screen)
    write(board, folder, screen)
    parent.log_artifact(folder)


def write(board: Board, folder: Path, screen: Screen) -> bool:
    """leaderboard.csv, leaderboard.html, parallel.png and parameters.png; what cannot be written costs a line, not a
    sweep. Returns whether all of it is there."""

    def csv() -> None:
        (folder / CSV).write_text(to_csv(board), encoding="utf-8", newline="")

    def page() -> None:
        from runner.report.leaderboard_page import page

        (folder / PAGE).write_text(page(board), encoding="utf-8")

    def plots() -> None:
        from runner.report import leaderboard_plots

        leaderboard_plots.draw(board, folder)

    parts: dict[str, Callable[[], None]] = {"table": csv, "page": page, "plots": plots}
    is_whole = True
    for name, part in parts.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            part()
        except Exception as error:  # noqa: BLE001 (matplotlib raises many types)
            screen.line(f"the leaderboard's {name} could not be written: {type(error).__name__}: {error}")
            is_whole = False
    if (folder / PAGE).exists():
        screen.line(f"page {relative(folder / PAGE)}")
    return is_whole
