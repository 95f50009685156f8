"""Ray Train V2 with Horovod as its backend, which V2 itself does not have: for the day when V1 goes, and HorovodTrainer with it.

Use it where V2 is wanted already, and on a cluster that loses nodes: a run may go on with fewer workers there, and with more when
nodes join (executor.min_workers), each time from its last checkpoint. Not beside horovod_trainer in one process, which has one
version of Ray Train; not for sweeps.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import uuid4

from runner import secrets
from runner.errors import TrainingError
from runner.executors import ray_cluster
from runner.executors.board import Board, started
from runner.executors.ray_train import horovod_settings, scaling
from runner.executors.session import collect
from runner.executors.v2_driver import Driver
from runner.job import Job, Memory, Received, Restarted

ASK_SECONDS = 60.0  # for the driver to answer a rank
RESIZE_SECONDS = 20  # for a group to get its places, before there is another look at how many there are
SPARE_CALLS = 4  # threads of the board besides those in which ranks wait


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job` on Ray; on the driver, `received` gets rank 0's reports, and `restarted` the number of each restart
    and why. Raises TrainingError with the root cause.

    Ray must have been started (ray_cluster.start), with V2 (ray_cluster.use_train).
    """
    from ray.train import RunConfig, ScalingConfig

    from runner.executors.horovod_backend import HorovodConfig
    from runner.executors.v2_trainer import Trainer

    experiment = job.experiment
    name = f"train-{uuid4().hex[:12]}"
    board = started(Board, name, job.plan.num_workers + SPARE_CALLS)
    driver = Driver(job, memory, board, received, restarted)
    is_local = ray_cluster.cluster_address(experiment.scaling.address) is None
    settings = scaling(job.plan.resources, experiment.scaling.placement_strategy)
    del settings["trainer_resources"]  # V2's controller takes none
    timeout = experiment.horovod.placement_group_timeout_s
    if experiment.executor.min_workers is not None and not is_local:
        settings["num_workers"] = (experiment.executor.min_workers, job.plan.num_workers)
        timeout = min(timeout, RESIZE_SECONDS)
    trainer = Trainer(
        _train_loop_per_worker,
        train_loop_config={"board": name},
        backend_config=HorovodConfig(**horovod_settings(experiment.horovod)),
        scaling_config=ScalingConfig(**settings),
        run_config=RunConfig(name="ray", storage_path=str(job.run_dir.absolute())),
        board=board,
        follow=driver.follow,
        environment={
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(timeout),
            # Of nodes that a cloud takes back: an actor that looks for it.
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0" if is_local else "1",
        },
        is_local=is_local,
    )
    try:
        trainer.fit()
    except Exception as error:
        raise driver.explained(error) from error
    collect(job.run_dir, driver.node)


def _train_loop_per_worker(config: dict[str, Any]) -> None:
    """Runs in a Ray worker: the Ray side of worker.train_loop_per_worker."""
    import ray
    from ray import train

    from runner.executors.joined import joined
    from runner.job import enter
    from runner.worker import train_loop_per_worker

    board, rank = ray.get_actor(config["board"]), train.get_context().get_world_rank()
    handed = ray.get(board.ask.remote(("joins", rank), ASK_SECONDS))
    if handed is None:
        raise TrainingError("the driver gives this rank no job")
    (open_job, kept), shards, memory, is_restart = ray.get(handed[0])
    job: Job = secrets.reveal(open_job, kept)
    enter(job)  # what is unpickled below may be of the user's modules

    def report(values: dict[str, Any]) -> None:
        # Not train.report: it waits until all ranks have called it and the controller has looked.
        if rank == 0:
            ray.get(board.tell.remote(("report", values)))

    train_loop_per_worker(job, ray.get(memory), shards[rank], partial(joined, job), report, rank, is_restart)
