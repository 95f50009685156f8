"""The jobs of a sweep on screen: a live table on a terminal, a line a job elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from runner.plan import Plan
from runner.report.console import Metrics, Screen, error_line, metrics_line
from runner.secrets import mask

SHOWN = 12  # rows of the live table: all that run, and the last that ended
SAY_SECONDS = 10.0  # between two lines about a job that trains, where there is no table


@dataclass
class Row:
    number: int
    overrides: str
    status: str = "waits"
    metrics: Metrics = field(default_factory=dict)
    done: float = 0.0  # of its length
    began: float | None = None
    ended: float | None = None
    said: float = 0.0


class SweepScreen:
    """Any thread may print. `total`: how many jobs there will be."""

    def __init__(self, screen: Screen, total: int) -> None:
        self._screen, self._console, self.total = screen, screen.console, total
        self._lock = threading.RLock()
        self._rows: dict[int, Row] = {}
        self._ended = 0
        self._live: Live | None = None

    def start(self) -> None:
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, get_renderable=self._table, refresh_per_second=4, transient=True
            )
            self._live.start()

    def stop(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is printed within: the process's output is somewhere else."""
        with self._lock:
            yield

    def line(self, text: str) -> None:
        with self._lock:
            self._screen.line(text)

    def job(self, number: int, overrides: Sequence[str]) -> JobScreen:
        with self._lock:
            row = self._rows[number] = Row(number, " ".join(overrides))
        return JobScreen(self, row)

    def began(self, row: Row) -> None:
        with self._lock:
            row.status, row.began = "trains", time.monotonic()

    def measured(self, row: Row, metrics: Metrics, plan: Plan) -> None:
        with self._lock:
            row.metrics = metrics
            row.done = min(1.0, metrics["epoch"] * plan.steps_per_epoch / plan.total_steps)
            now = time.monotonic()
            if not self._live and now - max(row.said, row.began or now) > SAY_SECONDS:
                row.said = now
                self.line(f"job {row.number}  epoch {metrics['epoch']:.4g}  {metrics_line(metrics)}")

    def ended(self, number: int, status: str, outcome: str, error: str | None) -> None:
        """For good; `status` in the words of the leaderboard."""
        with self._lock:
            row = self._rows[number]
            row.status, row.ended = status, time.monotonic()
            self._ended += 1
            if self._live is None:
                seconds = f"  {row.ended - row.began:.1f} s" if row.began else ""
                done = f"[{self._ended}/{self.total}] job {number}  {row.overrides}"
                self.line("  ".join(filter(None, (done, status, outcome))) + seconds + self._left())
            if error is not None and self._live is None:
                error_line(f"job {number} ({row.overrides}): {error}")
            elif error is not None:
                self.line(f"error: job {number} ({row.overrides}): {error}")

    def _left(self) -> str:
        """How long the rest will take, from those that ended."""
        took = [row.ended - row.began for row in self._rows.values() if row.ended and row.began]
        active = sum(row.status == "trains" for row in self._rows.values()) or 1
        rest = self.total - self._ended
        if not took or not rest:
            return ""
        return f"  ({rest} left, about {_duration(sum(took) / len(took) * rest / active)})"

    def _table(self) -> Table:
        with self._lock:
            table = Table(
                title=f"{self._ended} of {self.total} jobs{self._left()}", title_justify="left", expand=False
            )
            for column in ("job", "overrides", "status", "metrics", "ETA"):
                table.add_column(column, overflow="fold")
            ended = sorted((row for row in self._rows.values() if row.ended), key=lambda row: row.ended or 0)
            active = [row for row in self._rows.values() if row.ended is None]
            for row in [*ended[-max(2, SHOWN - len(active)) :], *active][-SHOWN:]:
                validation = {key: value for key, value in row.metrics.items() if key.startswith("val/")}
                cells = (str(row.number), row.overrides, row.status, metrics_line(validation), self._eta(row))
                table.add_row(*(Text(mask(cell)) for cell in cells))
            return table

    @staticmethod
    def _eta(row: Row) -> str:
        if row.ended or not row.began or not row.done:
            return ""
        return _duration((time.monotonic() - row.began) * (1 - row.done) / row.done)


class JobScreen(Screen):
    """What a training prints, as a row."""

    def __init__(self, sweep: SweepScreen, row: Row) -> None:
        self._sweep, self._row = sweep, row

    def banner(self, run_dir: Path, plan: Plan, *rest: Any, **more: Any) -> None:
        pass

    def start(self, steps: int) -> None:
        pass

    def began(self) -> None:
        self._sweep.began(self._row)

    def measured(self, metrics: Metrics, plan: Plan) -> None:
        self._sweep.measured(self._row, metrics, plan)

    def line(self, text: str) -> None:
        self._sweep.line(f"job {self._row.number}: {text}")

    def stop(self) -> None:
        pass

    def finished(self, result: dict[str, Any], uri: str | None, checkpoint: Path | None) -> None:
        pass


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
