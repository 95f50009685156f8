"""The best job so far: what the next one has to beat. In the end it alone gets plots and a stored model, a second each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from runner.known import Known
from runner.plan import Goal
from runner.prepare import Prepared, unheard
from runner.run_folder import locked
from runner.saving import FINAL, read_final
from runner.schema import Backend, Tracking
from runner.tracking import left_over


class Best:
    """Any thread may call it."""

    def __init__(self, goal: Goal) -> None:
        self._goal, self._lock = goal, Lock()
        self.number: int | None = None
        self.value: float | None = None
        self._plots: dict[int, Callable[[], None]] = {}  # what draws them, of the best job that has told

    def offer(self, number: int, value: float | None) -> None:
        with self._lock:
            if self._goal.is_better(value, self.value):
                self.number, self.value = number, value

    def keep(self, number: int, draw: Callable[[], None]) -> None:
        with self._lock:
            if number == self.number:
                self._plots = {number: draw}

    def complete(
        self, folder: Path, run_id: str | None, uri: str | None, job: Callable[[], Prepared], known: Known
    ) -> None:
        """Plots and model of the best job, in `folder` and in its MLflow run, as far as it has left what they are made of."""
        draw = self._plots.get(-1 if self.number is None else self.number)
        has_weights = (folder / FINAL).exists() and uri is not None
        if draw is None and not has_weights:
            return  # a run of an earlier command, which has them
        with locked(folder):
            if draw is not None:
                draw()
            if uri is not None and draw is not None:
                left_over.add_artifact(folder, uri, run_id, "plots")
            if uri is not None and has_weights:
                left_over.add_model(folder, uri, run_id, store_model(job(), folder, known))
            left_over.deliver_left(folder)


def preload(tracking: Tracking) -> None:
    """Import what `complete` and the leaderboard need (about 2 s), while Ray is being started."""
    import matplotlib.figure  # noqa: F401

    if tracking.log_model and tracking.backend is Backend.mlflow:
        from runner.tracking import mlflow

        mlflow.preload()


def store_model(job: Prepared, folder: Path, known: Known) -> Path:
    """The model with the final weights that the job has left, as MLflow stores models."""
    from runner import learner
    from runner.ingest.tensors import example
    from runner.tracking.mlflow import save_model
    from runner.tracking.spool import FOLDER, MODEL

    data = known.data(job.experiment)
    path = folder / FOLDER / f"{MODEL}{time.time_ns()}"
    with unheard():
        model = learner.construct(job.experiment, job.plan, data.facts)
        read_final(model, folder)
        save_model(model, example(data.splits), path)
    return path
