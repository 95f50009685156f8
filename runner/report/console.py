"""The run on screen: a banner, progress, a closing panel; a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from runner.plan import Plan
from runner.secrets import mask

Metrics = dict[str, float]
LAST_SHOWN = ("lr", "throughput/samples_per_second")
ADASCALE_STEPS = "adascale/steps"
NOT_SHOWN = ("epoch", "seconds/", "step_seconds/", ADASCALE_STEPS)


class Screen:
    """Everything is printed through one rich Console, so that a live bar and lines do not tear each other."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: Any = None

    def banner(
        self,
        run_dir: Path,
        plan: Plan,
        notes: Sequence[str] = (),
        run_id: str | None = None,
        uri: str | None = None,
    ) -> None:
        lines = [*plan.lines(), *notes, f"output {relative(run_dir)}"]
        if run_id:
            lines.append(f"mlflow run {run_id}")
            lines.append(f"open with {open_command(uri)}")
        self._panel(run_dir.name, lines)

    def start(self, steps: int) -> None:
        if self.console.is_terminal:
            columns = (
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._progress = Progress(*columns, console=self.console, transient=True)
            self._progress.start()
            self._task = self._progress.add_task("starting the workers", total=steps)
        else:
            self.line("starting the workers")

    def measured(self, metrics: Metrics, plan: Plan) -> None:
        """After an epoch or a validation."""
        # AdaScale's training has a length in steps of the base batch, and as many epochs as they take.
        progress = metrics.get(ADASCALE_STEPS, metrics["epoch"] * plan.steps_per_epoch)
        if self._progress:
            shown = metrics_line(_validation(metrics))
            self._progress.update(self._task, completed=round(progress), description=shown)
        elif ADASCALE_STEPS in metrics:
            done = f"step {progress:.1f}/{plan.total_steps} (scale-invariant)"
            self.line(f"epoch {metrics['epoch']:.4g}  {done}  {metrics_line(metrics)}")
        else:
            of = plan.total_steps / plan.steps_per_epoch
            self.line(f"epoch {metrics['epoch']:.4g}/{of:.4g}  {metrics_line(metrics)}")

    def line(self, text: str) -> None:
        self.console.print(Text(text))

    def stop(self) -> None:
        if self._progress:
            self._progress.stop()
            self._progress = None

    def finished(self, result: dict[str, Any], uri: str | None, checkpoint: Path | None) -> None:
        final, best = result["metrics"], result["best"]
        seconds = "  ".join(f"{phase} {value:.1f}" for phase, value in result["seconds"].items())
        lines = [
            f"final  epoch {final['epoch']:.4g}  {metrics_line(final)}",
            f"best   epoch {best['epoch']:.4g}  {metrics_line(best)}"
            if best
            else "best   none: the metric was NaN",
            f"weights sha256 {result['weights_sha256'][:16]}…",
            f"seconds {seconds}",
        ]
        if checkpoint:
            lines.append(f"best checkpoint {relative(checkpoint)}")
        if uri:
            lines.append(f"next: {open_command(uri)}")
        self._panel("finished", lines)

    @property
    def width(self) -> int | None:
        """Characters of the terminal; None elsewhere, where lines may have any length."""
        return self.console.width if self.console.is_terminal else None

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Aligned; on a terminal within its width."""
        rows = [[mask(cell) for cell in row] for row in rows]  # before they are cut or folded
        if self.console.is_terminal:
            table = Table(title=mask(title), title_justify="left")
            for column in columns:
                table.add_column(Text(column), overflow="fold")
            for row in rows:
                table.add_row(*map(Text, row))
            self.console.print(table, soft_wrap=False)
            return
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        self.line(f"── {title}")
        for row in (columns, *rows):
            self.line("  ".join(map(str.ljust, row, widths)).rstrip())

    def _panel(self, title: str, lines: Sequence[str]) -> None:
        lines = [mask(line) for line in lines]  # before they are folded
        if self.console.is_terminal:
            body = Group(*(Text(line, overflow="fold") for line in lines))
            self.console.print(Panel(body, title=title, title_align="left"), soft_wrap=False)
        else:
            for line in (f"── {title}", *lines):
                self.line(line)


def metrics_line(metrics: Metrics) -> str:
    first = [key for key in metrics if key not in LAST_SHOWN and not key.startswith(NOT_SHOWN)]
    shown = [*sorted(first, key=_rank), *(key for key in LAST_SHOWN if key in metrics)]
    return "  ".join(f"{key} {_number(metrics[key])}" for key in shown)


def open_command(uri: str | None) -> str:
    """What to type to see the run."""
    if uri is None or not uri.startswith("sqlite:"):
        return uri or ""
    beside_python = Path(sys.executable).with_name("mlflow")
    command = "mlflow" if shutil.which("mlflow") else str(relative(beside_python))
    return f"{command} ui --backend-store-uri sqlite:///{relative(Path(uri.removeprefix('sqlite:///')))}"


def relative(path: Path) -> Path:
    """The path as a user in the current directory would type it."""
    shorter = os.path.relpath(path)
    return path if shorter.startswith("..") else Path(shorter)


def error_line(error: object) -> None:
    """One line on stderr, red on a terminal."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(f"error: {error}", style="bold red"))


def _validation(metrics: Metrics) -> Metrics:
    return {key: value for key, value in metrics.items() if key.startswith("val/")}


def _rank(key: str) -> int:
    """Losses first, training before validation; the rest as it comes."""
    return {"train/loss": 0, "val/loss": 1}.get(key, 2)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
