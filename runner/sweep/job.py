"""A job of a sweep before it runs: composed, checked, and compared with what the store has of it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from runner import config, prepare, run_folder, secrets
from runner.checks import Checks
from runner.errors import NOT_FINITE, RunnerError, refuse
from runner.executors import choice
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

Compose = Callable[[Sequence[str], int, Path], DictConfig]  # overrides, number, the sweep's folder
JOB, OVERRIDES, STATUS, IDENTITY, BASIS = (
    f"runner.{name}" for name in ("job", "overrides", "status", "identity", "basis")
)  # tags of a job's run
CACHED = "runner.cached"  # the run whose results it has


class Action(Enum):
    RUN = "run"
    RESUME = "resume"  # where it stood
    CACHED = "cached"  # an earlier run has finished it
    REFUSED = "refused"  # it cannot be: a search has tried what is no job
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
    reason: str | None = None  # why it was refused

    @property
    def experiment(self) -> Experiment:
        return self.request.experiment

    def told(self, result: dict[str, Any]) -> Trial:
        """The trial with its end."""
        values = {
            each["epoch"]: each[self.monitor] for each in result.get("history", ()) if self.monitor in each
        }
        value = value_of((result.get("best") or {}).get(self.monitor), result.get("error"))
        return replace(self.trial, status=result["status"], value=value, values=values)

    @property
    def folder(self) -> Path:
        """Of its run, be it one of an earlier command."""
        known = self.earlier.tags.get("runner.run_dir") if self.earlier is not None else None
        return Path(known) if known else self.request.run_dir

    @property
    def monitor(self) -> str:
        return self.experiment.checkpoint.monitor


def request_of(compose: Compose, trial: Trial, roots: tuple[str, ...], folder: Path) -> Request:
    """The trial as a job of the sweep in `folder`: its config is one. Raises RunnerError that names it."""
    with _named(trial):
        composed = compose(trial.overrides, trial.number, folder)
        run_dir = Path(composed.hydra.runtime.output_dir)
        overrides = secrets.masked(trial.overrides)
        request = Request.of(without_hydra(composed), overrides, run_dir, roots)
        config.check_targets(request.experiment)
        prepare.check_kind(request.experiment)
        choice.check_in_sweep(request.experiment)
        return replace(request, tags={JOB: str(trial.number), OVERRIDES: json.dumps(overrides)})


def identified(trial: Trial, request: Request, known: Known) -> SweepJob:
    """Its data are loaded for it. Raises RunnerError that names it."""
    with _named(trial):
        code = code_version(request.values, request.import_roots)
        basis = sha256(code, _content(request.experiment, known))
        identity = sha256(request.fingerprint, basis)
        tags = {**request.tags, IDENTITY: identity, BASIS: basis}
        return SweepJob(trial, replace(request, tags=tags), identity, basis)


def check(job: SweepJob, known: Known) -> SweepJob:
    """With what can be known of it before a launch. Raises RunnerError that names it."""
    request = job.request if job.action is Action.RESUME else aside(job).request
    return replace(job, prepared=prepared_of(job.trial, request, known))


def check_resources(trial: Trial, request: Request, known: Known) -> None:
    """Raises RunnerError that names the trial."""
    with _named(trial):
        prepare.find_resources(request, Checks(request.experiment.skip_checks), known)


def prepared_of(trial: Trial, request: Request, known: Known) -> Prepared:
    """Without its data, which are loaded again when it runs. Raises RunnerError that names the job."""
    with _named(trial):
        return replace(prepare.prepare(request, known=known), data=None)  # type: ignore[arg-type]


def compared(job: SweepJob, found: Sequence[Found], mine: Collection[str], retry_failed: bool) -> SweepJob:
    """With what is to be done, as earlier runs, newest first, have it; `mine` are the ids of those of this sweep, which alone
    are gone on with."""
    runs = [run for run in found if run.tags.get(IDENTITY) == job.identity and CACHED not in run.tags]
    for run in runs:
        if status_of(run) == FINISHED:
            return replace(job, action=Action.CACHED, earlier=run)
    for run in runs:
        run_dir, status = Path(run.tags.get("runner.run_dir", "")), status_of(run)
        if status == FAILED and not retry_failed:
            return replace(job, action=Action.LEAVE, earlier=run)
        if run.run_id in mine and (run_dir / run_folder.RUN).exists() and run_folder.is_free(run_dir):
            request = replace(job.request, run_dir=run_dir, resumes=RunFile.read(run_dir))
            return replace(job, action=Action.RESUME, earlier=run, request=request)
    return aside(job)


def aside(job: SweepJob) -> SweepJob:
    return replace(job, request=beside(job.trial, job.request))


def beside(trial: Trial, request: Request) -> Request:
    """In a folder that holds no other run."""
    folder, again = request.run_dir, 0
    while (folder / run_folder.RUN).exists():
        again += 1
        folder = request.run_dir.with_name(f"{trial.number}-{again}")
    return replace(request, run_dir=folder)


def check_folders(requests: Sequence[Request]) -> None:
    """Raises ConfigError where two jobs would have the same folder (hydra.sweep.subdir)."""
    taken: dict[Path, str] = {}
    for request in requests:
        folder, number = request.run_dir, request.tags[JOB]
        if folder in taken:
            why = f"jobs {taken[folder]} and {number} would have the same folder"
            raise refuse("hydra.sweep.subdir", folder.name, why, "hydra.sweep.subdir='${hydra.job.num}'")
        taken[folder] = number


def line(job: SweepJob) -> str:
    """What is to be done, with its plan."""
    assert job.prepared is not None
    run = f" (run {job.earlier.run_id})" if job.earlier else ""
    said = f"job {job.trial.number}  {' '.join(job.request.overrides)}  {job.action.value}{run}"
    return f"{said}  {'; '.join(job.prepared.plan.lines())}"


def refused(trial: Trial, like: Request, folder: Path, error: RunnerError) -> SweepJob:
    """A trial of a search that is no job; `like` stands for all."""
    overrides, run_dir = secrets.masked(trial.overrides), folder / str(trial.number)
    request = replace(like, overrides=overrides, run_dir=run_dir)
    return SweepJob(trial, request, "", "", Action.REFUSED, reason=str(error.__cause__ or error))


def once(known: Sequence[SweepJob], say: Callable[[str], None]) -> list[SweepJob]:
    """Without those that are another one again."""
    first: dict[str, int] = {}
    kept = []
    for job in known:
        number = first.setdefault(job.identity, job.trial.number)
        if number == job.trial.number or job.action is not Action.RUN:
            kept.append(job)
        else:
            say(f"job {job.trial.number} is job {number} again, and left out; sweep.cache=false trains both")
    return kept


def status_of(run: Found) -> str:
    """FINISHED, PRUNED, FAILED or KILLED; a run whose driver was killed is KILLED."""
    status = run.tags.get(STATUS) or run.status
    was_lost = run.tags.get("runner.error", "").startswith(DRIVER_LOST)
    return status if status in (FINISHED, PRUNED, FAILED) and not was_lost else KILLED


def value_of(best: float | None, error: str | None) -> float | None:
    """What a search learns of a job: the best of checkpoint.monitor; NaN where it diverged before there was one."""
    return math.nan if best is None and NOT_FINITE in (error or "") else best


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


def sha256(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()
