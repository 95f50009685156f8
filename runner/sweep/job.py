"""A job of a sweep before it runs: composed, checked, and compared with what the store has of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from runner import config, prepare, run_folder, secrets
from runner.errors import RunnerError
from runner.known import Known, data_key
from runner.prepare import Prepared
from runner.recording import DRIVER_LOST
from runner.request import Request
from runner.run_folder import RunFile
from runner.schema import Experiment
from runner.sources import code_version
from runner.sweep.compose import without_hydra
from runner.sweep.source import FAILED, FINISHED, KILLED, PRUNED, Trial
from runner.tracking.found import Found

Compose = Callable[[Sequence[str], int], DictConfig]
JOB, OVERRIDES, STATUS, IDENTITY, BASIS = (
    f"runner.{name}" for name in ("job", "overrides", "status", "identity", "basis")
)  # tags of a job's run
CACHED = "runner.cached"  # the run whose results it has


class Action(Enum):
    RUN = "run"
    RESUME = "resume"  # where it stood
    CACHED = "cached"  # an earlier run has finished it
    LEAVE = "failed before"  # and is not tried again


@dataclass(frozen=True)
class SweepJob:
    trial: Trial
    request: Request
    identity: str  # of config, data and code: equal for jobs with equal numbers
    basis: str  # of data and code alone
    action: Action = Action.RUN
    earlier: Found | None = None
    prepared: Prepared | None = None  # of what runs; without its data

    @property
    def experiment(self) -> Experiment:
        return self.request.experiment

    def told(self, result: dict[str, Any]) -> Trial:
        """The trial with its end."""
        values = {
            each["epoch"]: each[self.monitor] for each in result.get("history", ()) if self.monitor in each
        }
        value = (result.get("best") or {}).get(self.monitor)
        return replace(self.trial, status=result["status"], value=value, values=values)

    @property
    def monitor(self) -> str:
        return self.experiment.checkpoint.monitor


def load(compose: Compose, trial: Trial, roots: tuple[str, ...], folder: Path, known: Known) -> SweepJob:
    """The job, composed; its data have been looked at. Raises RunnerError that names it."""
    with _named(trial):
        composed = without_hydra(compose(trial.overrides, trial.number))
        overrides = secrets.masked(trial.overrides)
        request = Request.of(composed, overrides, folder / str(trial.number), roots)
        config.check_targets(request.experiment)
        prepare.check_kind(request.experiment)
        basis = _sha256(code_version(request.values, roots), _content(request.experiment, known))
        identity = _sha256(request.fingerprint, basis)
        tags = {JOB: str(trial.number), OVERRIDES: json.dumps(overrides), IDENTITY: identity, BASIS: basis}
        return SweepJob(trial, replace(request, tags=tags), identity, basis)


def check(job: SweepJob, known: Known) -> SweepJob:
    """What can be known of it before a launch. Raises RunnerError that names it."""
    with _named(job.trial):
        prepared = prepare.prepare(job.request, known=known)
    return replace(job, prepared=replace(prepared, data=None))  # type: ignore[arg-type]  # loaded again when it runs


def compared(job: SweepJob, found: Sequence[Found], retry_failed: bool) -> SweepJob:
    """With what is to be done, as earlier runs of the same identity have it; newest first."""
    mine = [run for run in found if run.tags.get(IDENTITY) == job.identity and CACHED not in run.tags]
    for run in mine:
        if status_of(run) == FINISHED:
            return replace(job, action=Action.CACHED, earlier=run)
    for run in mine:
        run_dir, status = Path(run.tags.get("runner.run_dir", "")), status_of(run)
        was_lost = run.tags.get("runner.error", "").startswith(DRIVER_LOST)
        if status == FAILED and not was_lost and not retry_failed:
            return replace(job, action=Action.LEAVE, earlier=run)
        if (run_dir / run_folder.RUN).exists() and run_folder.is_free(run_dir):
            request = replace(job.request, run_dir=run_dir, resumes=RunFile.read(run_dir))
            return replace(job, action=Action.RESUME, earlier=run, request=request)
    return job


def status_of(run: Found) -> str:
    """FINISHED, PRUNED, FAILED or KILLED; a run whose driver was killed is KILLED."""
    status = run.tags.get(STATUS) or run.status
    return status if status in (FINISHED, PRUNED, FAILED) else KILLED


@contextmanager
def _named(trial: Trial) -> Iterator[None]:
    """A refused job says which it is."""
    try:
        yield
    except RunnerError as error:
        said = " ".join(secrets.masked(trial.overrides))
        raise type(error)(f"job {trial.number} ({said}): {error}") from error


def _content(experiment: Experiment, known: Known) -> str:
    from runner.ingest.content import content

    def find() -> str:
        return content(known.data(experiment), experiment.dataset.target)

    return known.once("content", data_key(experiment), find=find)


def _sha256(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()
