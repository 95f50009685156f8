"""Parts of a sweep that were not composed: jobs, runs of earlier commands, a record that keeps what it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner import config
from runner.ingest import arrays
from runner.plan import make_plan
from runner.prepare import Prepared
from runner.request import Request
from runner.resources import plan_resources
from runner.run_folder import RunFile, now
from runner.schema import Experiment
from runner.sweep.job import BASIS, IDENTITY, JOB, SweepJob
from runner.sweep.source import Trial
from runner.tracking import NullRecord
from runner.tracking.found import Found
from tests.fakes import LAPTOP, make_experiment

IDENTITY_OF_ALL, BASIS_OF_ALL = "the same", "as before"


def request_of(run_dir: Path, overrides: tuple[str, ...], experiment: Experiment) -> Request:
    return Request(experiment, "seed: 0\n", {"seed": 0}, overrides, run_dir, run_dir.parents[1], (), "print")


def job_of(
    folder: Path, number: int = 0, overrides: tuple[str, ...] = (), settings: dict[str, Any] | None = None
) -> SweepJob:
    """Job `number` of the sweep in `folder`, of which nothing is known yet."""
    request = request_of(folder / str(number), overrides, make_experiment(settings))
    return SweepJob(Trial(number, overrides), request, IDENTITY_OF_ALL, BASIS_OF_ALL)


def prepared_of(experiment: Experiment) -> Prepared:
    data = arrays.load(experiment.dataset, experiment.seed)
    plan = make_plan(experiment, data.facts, plan_resources(experiment, LAPTOP))
    return Prepared(experiment, plan, data, None, LAPTOP, None)


def found(run_id: str = "old", status: str = "FINISHED", **changes: Any) -> Found:
    """A run of the same job; `tags` are added to what all have."""
    tags = {IDENTITY: IDENTITY_OF_ALL, BASIS: BASIS_OF_ALL, JOB: "0", "runner.status": status}
    tags |= changes.pop("tags", {})
    whole = {
        "experiment_id": "1",
        "name": run_id,
        "started": 0,
        "ended": 1,
        "metrics": {},
        "status": "KILLED" if status == "PRUNED" else status,
    }
    return Found(**{**whole, "run_id": run_id, "tags": tags, **changes})


def begun(run_dir: Path) -> RunFile:
    """A run's folder, as a driver that was killed leaves it."""
    file = RunFile("old", None, "print", "seed: 0\n", [], str(run_dir), [], now())
    file.write(run_dir)
    return file


class Record(NullRecord):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.artifacts: list[Path] = []
        self.tags: dict[str, str] = {}
        self.status: str | None = None

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        self.metrics |= metrics

    def log_artifact(self, path: Path) -> None:
        self.artifacts.append(path)

    def set_tags(self, tags: dict[str, str]) -> None:
        self.tags |= tags

    def finish(self, status: str, error: str | None = None) -> None:
        self.status = status


config.register_schema()
