"""Which executor a config asks for, and what it can do. Imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from runner.errors import refuse
from runner.executor_schema import ExecutorName, Keep
from runner.executors import ray_cluster
from runner.executors.launched import launched
from runner.schema import Experiment, Ingest, Placement

if TYPE_CHECKING:
    from runner.job import Job, Memory, Received, Restarted

    Run = Callable[[Job, Memory, Received, Restarted], None]

DEFAULT = ExecutorName.horovod_trainer
WITHOUT_RAY = {ExecutorName.horovodrun, ExecutorName.local}


def uses_ray(experiment: Experiment) -> bool:
    return experiment.executor.name not in WITHOUT_RAY


def uses_ray_train(experiment: Experiment) -> bool:
    return experiment.executor.name in (DEFAULT, ExecutorName.train_v2)


def uses_train_v2(experiment: Experiment) -> bool:
    return experiment.executor.name is ExecutorName.train_v2


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
    check_hosts(experiment)
    if uses_train_v2(experiment):
        check_train_v2(experiment)
    if experiment.executor.name is ExecutorName.elastic:
        check_elastic(experiment)


def check_hosts(experiment: Experiment) -> None:
    """Raises ConfigError for hosts of as many workers each, and for an address, that Horovod's RayExecutor cannot have."""
    executor, scaling = experiment.executor, experiment.scaling
    hosts, each = executor.num_hosts, executor.num_workers_per_host
    address = ray_cluster.cluster_address(scaling.address)
    if executor.name is not ExecutorName.ray_executor:
        for key, value in (("num_hosts", hosts), ("num_workers_per_host", each)):
            if value is not None:
                why = f"executor={executor.name.value} places workers by scaling.placement_strategy"
                raise refuse(f"executor.{key}", value, why, "executor=ray_executor")
        return
    if address is not None and address.startswith("ray://"):
        why = "executor=ray_executor must be within the cluster, not a Ray client of it"
        raise refuse("scaling.address", address, why, "scaling.address=<host of the head>:6379")
    if hosts is None:
        if each is not None:
            key, why = "executor.num_workers_per_host", "the number of hosts is not given"
            raise refuse(key, each, why, f"executor.num_hosts=1, or scaling.num_workers={each} instead")
        return
    if hosts > 1 and address is None:
        why = "this machine is one host, and no cluster is joined"
        raise refuse("executor.num_hosts", hosts, why, "executor.num_hosts=1, or scaling.address=<host>:6379")
    if scaling.placement_strategy is not Placement.PACK:
        why = "executor.num_hosts spreads the workers already"
        instead = "scaling.placement_strategy=PACK"
        raise refuse("scaling.placement_strategy", scaling.placement_strategy.value, why, instead)
    gpus = scaling.resources_per_worker.GPU
    if gpus not in (None, 0, 1):
        why = "with executor.num_hosts Horovod gives each worker one GPU"
        raise refuse(
            "scaling.resources_per_worker.GPU", f"{gpus:g}", why, "scaling.resources_per_worker.GPU=1"
        )


def check_train_v2(experiment: Experiment) -> None:
    fewest, workers = experiment.executor.min_workers, experiment.scaling.num_workers
    if fewest is not None and fewest > workers:
        why = f"more than scaling.num_workers={workers}, the most workers"
        raise refuse("executor.min_workers", fewest, why, f"executor.min_workers={workers}")


def check_elastic(experiment: Experiment) -> None:
    executor, workers = experiment.executor, experiment.scaling.num_workers
    most = executor.max_workers or workers
    if executor.least > most:
        raise refuse(
            "executor.min_workers",
            executor.least,
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
