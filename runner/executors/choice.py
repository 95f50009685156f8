"""Which executor a config asks for, and what it can do. Imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from runner.errors import refuse
from runner.schema import ExecutorName, Experiment, Ingest

if TYPE_CHECKING:
    from runner.job import Job, Memory, Received, Restarted

    Run = Callable[[Job, Memory, Received, Restarted], None]

DEFAULT = ExecutorName.horovod_trainer
WITHOUT_RAY = {ExecutorName.local}
ON_TRAIN_V2 = {ExecutorName.train_v2}


def uses_ray(experiment: Experiment) -> bool:
    return experiment.executor.name not in WITHOUT_RAY


def uses_train_v2(experiment: Experiment) -> bool:
    return experiment.executor.name in ON_TRAIN_V2


def is_alone(experiment: Experiment) -> bool:
    """One process, without Horovod."""
    return experiment.executor.name is ExecutorName.local


def run_of(experiment: Experiment) -> Run:
    """The `run` of the module that the executor's name says: trains a job, to its end or to a TrainingError with the root cause."""
    run: Run = import_module(f"runner.executors.{experiment.executor.name.value}").run
    return run


def check(experiment: Experiment) -> None:
    """Raises ConfigError for what the executor cannot do."""
    name, workers = experiment.executor.name.value, experiment.scaling.num_workers
    if is_alone(experiment) and workers != 1:
        raise refuse(
            "scaling.num_workers", workers, f"executor={name} is one process", "scaling.num_workers=1"
        )
    if experiment.dataset.ingest is Ingest.ray_data and not uses_ray(experiment):
        ingest = experiment.dataset.ingest.value
        raise refuse("dataset.ingest", ingest, f"executor={name} starts no Ray", f"executor={DEFAULT.value}")
    if uses_train_v2(experiment):
        check_train_v2(experiment)


def check_train_v2(experiment: Experiment) -> None:
    fewest, workers = experiment.executor.min_workers, experiment.scaling.num_workers
    if fewest is not None and fewest > workers:
        why = f"more than scaling.num_workers={workers}, the most workers"
        raise refuse("executor.min_workers", fewest, why, f"executor.min_workers={workers}")


def check_in_sweep(experiment: Experiment) -> None:
    """Raises ConfigError: the warm sessions of a sweep are the default's."""
    if experiment.executor.name is not DEFAULT:
        raise refuse(
            "executor",
            experiment.executor.name.value,
            f"the warm workers of a sweep are those of {DEFAULT.value}",
            f"executor={DEFAULT.value}, or hydra/launcher=basic for one job after the other",
        )
