"""Ray Train's HorovodTrainer, the default executor: a process per worker, placed by Ray, joined by Horovod.

Use it on one machine or a Ray cluster. Not for elastic training: the number of workers is fixed for a run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.errors import LaunchError, RunnerError, TrainingError
from runner.executors import ray_cluster
from runner.ingest import ray_data
from runner.profile import FOLDER
from runner.rank_log import log_path
from runner.schema import Experiment, Ingest
from runner.worker import Job, Memory

Received = dict[str, Any]


def run(job: Job, memory: Memory, received: Callable[[Received], None]) -> None:
    """Train `job` on Ray; `received` gets rank 0's reports, on the driver. Raises TrainingError with the root cause.

    Ray must have been started (ray_cluster.start).
    """
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.horovod import HorovodTrainer

    from runner.executors.receiver import Receiver

    resources = job.plan.resources
    streamed: dict[str, Any] = {}
    streams: list[str] = []
    if job.experiment.dataset.ingest is Ingest.ray_data:
        splits = memory.splits
        streamed = {
            "datasets": ray_data.datasets(splits, job.plan, job.experiment.seed),
            "dataset_config": ray_data.data_config(job.plan),
        }
        streams = ray_data.streams(splits)
        memory = Memory(ray_data.kept(splits), memory.initial)
    trainer = HorovodTrainer(
        _train_loop_per_worker,
        # The arrays go to Ray's shared memory once: one copy a node, read by all its workers.
        train_loop_config={"job": job, "memory": ray.put(memory), "streams": streams},
        horovod_config=horovod_config(job.experiment),
        scaling_config=ScalingConfig(
            num_workers=resources.num_workers,
            use_gpu=resources.use_gpu,
            resources_per_worker=_per_worker(resources.cpus_per_worker, resources.gpus_per_worker),
            trainer_resources={"CPU": 0},
            placement_strategy=job.experiment.scaling.placement_strategy.value,
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(job.run_dir.absolute()),
            verbose=2 if job.experiment.verbose else 0,
            callbacks=[Receiver(received)],
        ),
        **streamed,
    )
    try:
        trainer.fit()
    except Exception as error:
        _collect(job.run_dir)
        raise failure(job, error) from error
    _collect(job.run_dir)


def preload() -> None:
    """Import what `run` needs (about 1 s), while Ray is being started."""
    os.environ.update(ray_cluster.ENVIRONMENT)
    from ray.train.horovod import HorovodTrainer  # noqa: F401


def horovod_config(experiment: Experiment) -> Any:
    """Ray's HorovodConfig from conf/horovod."""
    from ray.train.horovod import HorovodConfig

    horovod = experiment.horovod
    return HorovodConfig(
        nics=set(horovod.nics) if horovod.nics else None,
        verbose=horovod.verbose,
        key=horovod.key,
        ssh_port=horovod.ssh_port,
        ssh_identity_file=horovod.ssh_identity_file,
        ssh_str=horovod.ssh_str,
        timeout_s=horovod.timeout_s,
        placement_group_timeout_s=horovod.placement_group_timeout_s,
    )


def failure(job: Job, error: BaseException) -> RunnerError:
    """One root cause: the earliest error that a rank recorded, else what Ray says of the launch."""
    records = [json.loads(path.read_text()) for path in (job.run_dir / "errors").glob("rank-*.json")]
    if not records:
        while error.__cause__ is not None:
            error = error.__cause__
        last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        if not log_path(job.run_dir, 0).exists():
            return LaunchError(f"the workers did not start: {last_line} (verbose=true shows Ray's output)")
        return TrainingError(
            "a worker process died without a Python error: killed, out of memory, or os._exit "
            f"(logs in {_short(log_path(job.run_dir, 0).parent)}; verbose=true shows Ray's account)"
        )
    first = min(records, key=lambda record: record["time"])
    log = log_path(job.run_dir, first["rank"])
    message = " ".join(first["message"].split())
    if first["line"] is None:
        return TrainingError(f"rank {first['rank']}: {message} (full trace in {_short(log)})")
    return TrainingError(
        f"rank {first['rank']}: {first['type']}: {message} ({first['line']}; full trace in {_short(log)})"
    )


def _train_loop_per_worker(config: dict[str, Any]) -> None:
    """Runs in a Ray worker: the Ray side of worker.train_loop_per_worker."""
    import ray
    from ray import train

    from runner.communicator import Communicator, HorovodCommunicator
    from runner.worker import train_loop_per_worker

    job: Job = config["job"]
    experiment = job.experiment

    def connect() -> Communicator:
        timeline = job.run_dir / FOLDER / "horovod-timeline.json" if experiment.horovod.timeline else None
        return HorovodCommunicator(experiment.horovod, experiment.trainer.deterministic, timeline)

    def report(values: dict[str, Any]) -> None:
        # One JSON string, so that Tune neither flattens nor prints the values; NaN survives.
        train.report({"runner": json.dumps(values)})

    rank = train.get_context().get_world_rank()
    shards = {name: train.get_dataset_shard(name) for name in config["streams"]}
    train_loop_per_worker(job, ray.get(config["memory"]), shards, connect, report, rank)


def _collect(run_dir: Path) -> None:
    """Records of ranks on other nodes; a node that is gone keeps its own."""
    import ray

    try:
        ray_cluster.collect(run_dir, run_dir, but_node=ray.get_runtime_context().get_node_id())
    except ray.exceptions.RayError as error:
        print(f"not every node's logs could be collected: {str(error).splitlines()[0]}")


def _per_worker(cpus: float, gpus: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
