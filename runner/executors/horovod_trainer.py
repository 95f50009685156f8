"""Ray Train's HorovodTrainer, the default executor: a process per worker, placed by Ray, joined by Horovod.

Use it on one machine or a Ray cluster. Not for elastic training: the number of workers is fixed for a run.
"""

from __future__ import annotations

import gc
import json
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runner import secrets
from runner.diagnosis import Diagnosis, account_of, diagnose, tried_in_vain
from runner.errors import RunnerError, first_line
from runner.executors import nodes, ray_cluster
from runner.executors.ray_train import horovod_config, scaling, trainer_class
from runner.ingest import ray_data
from runner.job import Job, Memory, Received, Restarted
from runner.schema import Ingest


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job` on Ray; on the driver, `received` gets rank 0's reports, and `restarted` the number of each restart
    and why. Raises TrainingError with the root cause.

    Ray must have been started (ray_cluster.start).
    """
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    from runner.executors.receiver import Receiver, StopWhen

    streamed: dict[str, Any] = {}
    streams: list[str] = []
    if job.experiment.dataset.ingest is Ingest.ray_data:
        splits = memory.splits
        streamed = {
            "datasets": ray_data.datasets(splits, job.plan, job.experiment.seed),
            "dataset_config": ray_data.data_config(job.plan),
        }
        streams = ray_data.streams(splits)
        memory = replace(memory, splits=ray_data.kept(splits))
    attempts = Attempts(job, restarted)
    open_job, kept = secrets.hide(job)
    is_local = ray_cluster.cluster_address(job.experiment.scaling.address) is None and not streams
    trainer = trainer_class(is_local)(
        _train_loop_per_worker,
        # Ray writes this into files, but for what is in its shared memory. There the arrays are once: one copy a node, read by
        # all its workers.
        train_loop_config={
            "job": open_job,
            "secrets": ray.put(kept),
            "memory": ray.put(memory),
            "streams": streams,
            "restarts": attempts.key,
        },
        horovod_config=horovod_config(job.experiment.horovod),
        scaling_config=ScalingConfig(
            **scaling(job.plan.resources, job.experiment.scaling.placement_strategy)
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(job.run_dir.absolute()),
            verbose=2 if job.experiment.verbose else 0,
            callbacks=[Receiver(received, attempts.failed)],
            failure_config=FailureConfig(job.experiment.trainer.max_failures),
            stop=StopWhen(lambda: attempts.final is not None),
        ),
        **streamed,
    )
    try:
        trainer.fit()
    except Exception as error:
        raise attempts.explained(error) from error
    if attempts.final is not None:
        raise attempts.final
    _collect(job.run_dir)


class Attempts:
    """The attempts at one training. Tune restarts after any failure; only that of a process is worth it, so an exception
    of the Python code ends the training (`final`)."""

    def __init__(self, job: Job, restarted: Restarted) -> None:
        self.key = f"runner/restarts/{uuid.uuid4()}".encode()  # in Ray's store: set once there was a restart
        self.final: RunnerError | None = None
        self._job, self._restarted = job, restarted
        self._count, self._since = 0, time.time()

    def failed(self, account: str) -> None:
        """Tune is about to start all workers anew; `account` is what Ray says of the failure."""
        from ray.experimental import internal_kv

        found = self._diagnose(account)
        if found.is_final:
            self.final = found.error
            return
        internal_kv._internal_kv_put(self.key, b"1")
        self._count += 1
        self._since = time.time()
        self._restarted(self._count, str(found.error))

    def explained(self, error: BaseException) -> RunnerError:
        """The root cause of the last attempt, and how many there were."""
        if self.final is not None:
            return self.final
        found = self._diagnose(account_of(error))
        return tried_in_vain(found, self._count, self._count)

    def _diagnose(self, account: str) -> Diagnosis:
        _collect(self._job.run_dir)
        return diagnose(self._job.run_dir, self._job.plan.num_workers, self._since, account)


def _train_loop_per_worker(config: dict[str, Any]) -> None:
    """Runs in a Ray worker: the Ray side of worker.train_loop_per_worker."""
    import ray
    from ray import train
    from ray.experimental import internal_kv

    from runner.executors.joined import joined
    from runner.job import enter
    from runner.worker import train_loop_per_worker

    job: Job = secrets.reveal(config["job"], ray.get(config["secrets"]))
    enter(job)  # what is unpickled below may be of the user's modules

    def report(values: dict[str, Any]) -> None:
        # One JSON string, so that Tune neither flattens nor prints the values; NaN survives.
        train.report({"runner": json.dumps(values)})

    rank = train.get_context().get_world_rank()
    shards = {name: train.get_dataset_shard(name) for name in config["streams"]}
    is_restart = internal_kv._internal_kv_exists(config["restarts"])
    train_loop_per_worker(
        job, ray.get(config["memory"]), shards, partial(joined, job), report, rank, is_restart
    )
    gc.freeze()  # this process ends now: in 0.1 s, where a look for garbage in all of torch and Ray takes 0.7


def _collect(run_dir: Path) -> None:
    """Records of ranks on other nodes; a node that is gone keeps its own."""
    import ray

    try:
        nodes.collect(run_dir, run_dir, but_node=ray.get_runtime_context().get_node_id())
    except ray.exceptions.RayError as error:
        print(f"not every node's logs could be collected: {first_line(error)}")
