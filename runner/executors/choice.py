"""Which executor a config asks for, and what it can do. Imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from runner.errors import refuse
from runner.executor_schema import ExecutorName, Keep
from runner.schema import Experiment, Ingest

if TYPE_CHECKING:
    from runner.job import Job, Memory, Received, Restarted

    Run = Callable[[Job, Memory, Received, Restarted], None]

DEFAULT = ExecutorName.horovod_trainer
WITHOUT_RAY = {ExecutorName.local}


def uses_ray(experiment: Experiment) -> bool:
    return experiment.executor.name not in WITHOUT_RAY


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
    if experiment.executor.name is ExecutorName.elastic:
        check_elastic(experiment)


def check_elastic(experiment: Experiment) -> None:
    executor, workers = experiment.executor, experiment.scaling.num_workers
    most = executor.max_workers or workers
    if executor.min_workers > most:
        raise refuse(
            "executor.min_workers",
            executor.min_workers,
            f"more than {most}, the most workers",
            f"executor.min_workers={most}",
        )
    if executor.cooldown_s is not None:
        low, high = (*executor.cooldown_s, 0, 0)[:2]
        if len(executor.cooldown_s) != 2 or not 1 <= low <= high <= 3600:
            what = "must be two numbers of seconds from 1 to 3600, the shortest and the longest"
            raise refuse("executor.cooldown_s", executor.cooldown_s, what, "executor.cooldown_s=[1,60]")
    if experiment.horovod.cycle_time_ms != 1.0:
        why = "Horovod 0.28.1 cannot connect again with another one"
        raise refuse(
            "horovod.cycle_time_ms", experiment.horovod.cycle_time_ms, why, "horovod.cycle_time_ms=1"
        )
    if experiment.dataset.ingest is Ingest.ray_data:
        why = "deals an epoch's rows once, to workers that stay"
        raise refuse("dataset.ingest", Ingest.ray_data.value, why, "dataset.ingest=dataloader")
    if executor.keep is Keep.global_batch and is_adaptive(experiment):
        why = "AdaScale measures the gain over as many micro-batches of the base batch in each step"
        raise refuse("executor.keep", executor.keep.value, why, "executor.keep=per_worker_batch")


def is_adaptive(experiment: Experiment) -> bool:
    return str(experiment.lr_scaling.target.get("_target_", "")).endswith(".adascale")


def check_in_sweep(experiment: Experiment) -> None:
    """Raises ConfigError: the warm sessions of a sweep are the default's."""
    if experiment.executor.name is not DEFAULT:
        raise refuse(
            "executor",
            experiment.executor.name.value,
            f"the warm workers of a sweep are those of {DEFAULT.value}",
            f"executor={DEFAULT.value}, or hydra/launcher=basic for one job after the other",
        )
