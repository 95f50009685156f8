"""The best job so far: what the next one has to beat, and whose plots are drawn in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from runner.plan import Goal
from runner.run_folder import locked
from runner.tracking import left_over


class Best:
    """Any thread may call it."""

    def __init__(self, goal: Goal) -> None:
        self._goal, self._lock = goal, Lock()
        self.value: float | None = None
        self._plots: tuple[int, Callable[[], None]] | None = None  # the job, and what draws them

    def offer(self, value: float | None) -> None:
        with self._lock:
            if self._goal.is_better(value, self.value):
                self.value, self._plots = value, None

    def keep(self, number: int, draw: Callable[[], None]) -> None:
        """Called with what draws the plots of a job that has just beaten the others: it takes a second a job."""
        self._plots = number, draw

    def draw(self, folder_of: Callable[[int], tuple[Path, str | None]], uri: str | None) -> None:
        """The plots, also in MLflow; `folder_of` gives a job's folder and run. Nothing where the best job is an earlier run."""
        if self._plots is None:
            return
        number, draw = self._plots
        folder, run_id = folder_of(number)
        with locked(folder):
            draw()
            if uri is not None:
                left_over.add_artifact(folder, uri, run_id, "plots")
                left_over.deliver_left(folder)
