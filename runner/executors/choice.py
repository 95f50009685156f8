"""Which executor a config asks for, and what it can do. Imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from runner.errors import refuse
from runner.executors.launched import launched
from runner.schema import ExecutorName, Experiment, Ingest

if TYPE_CHECKING:
    from runner.job import Job, Memory, Received, Restarted

    Run = Callable[[Job, Memory, Received, Restarted], None]

DEFAULT = ExecutorName.horovod_trainer
WITHOUT_RAY = {ExecutorName.horovodrun, ExecutorName.local}


def uses_ray(experiment: Experiment) -> bool:
    return experiment.executor.name not in WITHOUT_RAY


def is_alone(experiment: Experiment) -> bool:
    """One process, without Horovod."""
    return experiment.executor.name is ExecutorName.local


def run_of(experiment: Experiment) -> Run:
    """The `run` of the module that the executor's name says: trains a job, to its end or to a TrainingError with the root cause."""
    run: Run = import_module(f"runner.executors.{experiment.executor.name.value}").run
    return run


def check_launch(experiment: Experiment, resumes: bool) -> None:
    """Raises ConfigError: the ranks of horovodrun are started by the user."""
    if (
        experiment.executor.name is not ExecutorName.horovodrun
        or experiment.dry_run
        or launched() is not None
    ):
        return
    started = f"horovodrun -np {experiment.scaling.num_workers} python -m runner"
    instead = f"{started} resume …, or executor.name={DEFAULT.value}" if resumes else f"{started} …"
    raise refuse("executor", experiment.executor.name.value, "horovodrun has not started this", instead)


def check(experiment: Experiment) -> None:
    """Raises ConfigError for what the executor cannot do."""
    name, workers = experiment.executor.name.value, experiment.scaling.num_workers
    if is_alone(experiment) and workers != 1:
        raise refuse(
            "scaling.num_workers", workers, f"executor={name} is one process", "scaling.num_workers=1"
        )
    if experiment.dataset.ingest is Ingest.ray_data and not uses_ray(experiment):
        ingest = experiment.dataset.ingest.value
        instead = "dataset.ingest=dataloader" if launched() else f"executor={DEFAULT.value}"
        raise refuse("dataset.ingest", ingest, f"executor={name} starts no Ray", instead)


def check_in_sweep(experiment: Experiment) -> None:
    """Raises ConfigError: the warm sessions of a sweep are the default's."""
    if experiment.executor.name is not DEFAULT:
        raise refuse(
            "executor",
            experiment.executor.name.value,
            f"the warm workers of a sweep are those of {DEFAULT.value}",
            f"executor={DEFAULT.value}, or hydra/launcher=basic for one job after the other",
        )
