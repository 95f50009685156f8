"""Live Horovod workers that train one job after another, each without a launch: what many small trainings need.

Horovod's RayExecutor on this machine: the workers stay connected between jobs, so a further one starts within
milliseconds. Not for a Ray cluster, and not for one long training: nothing restarts a lost worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runner.communicator import Communicator, environment
from runner.diagnosis import diagnose, record_error
from runner.errors import LaunchError, PreflightError
from runner.executors.live_rank import Connected
from runner.executors.ray_group import RayGroup, Shards, connected, dealt, is_one_machine
from runner.job import Job, Memory, enter
from runner.schema import Horovod
from runner.worker import train_loop_per_worker

# Of a CPU, held by a worker: next to nothing, so that a group starts whatever else is placed. How many threads it
# computes with is the job's plan.
CPU_SHARE = 0.01

Reports = list[dict[str, Any]]
OnRank = Callable[[Job, Memory, Mapping[str, Any], Communicator], Any]  # job, memory, the rank's shards, …


class LiveWorkers:
    """A group of `num_workers` ranks on this machine, in a Ray that has been started (ray_cluster.start).

    HOROVOD_* settings are read when the ranks connect, so a group has one set of them for its life; one that is
    `deterministic` takes other jobs too. A job that fails ends the group: its ranks may wait for each other.
    Raises LaunchError where the workers do not start, PreflightError on a cluster.
    """

    def __init__(self, num_workers: int, horovod: Horovod, deterministic: bool = True) -> None:
        if not is_one_machine():
            raise PreflightError("live workers are on this machine only; type scaling.address=local")
        self.num_workers, self._horovod, self._deterministic = num_workers, horovod, deterministic
        workers = {"num_workers": num_workers, "cpus_per_worker": CPU_SHARE}
        horovod = replace(horovod, nics=None)  # those between machines
        self._group = RayGroup(horovod, workers, partial(Connected, horovod, deterministic))

    def __enter__(self) -> LiveWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not KeyboardInterrupt:  # then Ray may answer nothing any more, and ends with this process
            self.close()

    def train(self, job: Job, memory: Memory) -> Reports:
        """Rank 0's reports of one training. Raises TrainingError with the one cause of a failure."""
        return self.run(_train, job, memory)[0]

    def run(self, function: OnRank, job: Job, memory: Memory) -> list[Any]:
        """What `function(job, memory, shards, communicator)` returns on each rank; it must leave no rank behind in a
        collective. Raises TrainingError with the one cause of a failure."""
        import ray

        if not self.is_open:
            raise LaunchError("these workers are closed")
        is_exact, experiment = self._deterministic, job.experiment
        wanted, given = (environment(each, is_exact) for each in (experiment.horovod, self._horovod))
        if wanted != given or experiment.trainer.deterministic > is_exact:
            raise LaunchError("these workers keep their HOROVOD_* settings, and this job has others")
        shards, memory = dealt(job, memory)
        since = time.time()
        # In a list Ray leaves the reference as it is: what it stands for may be of the user's modules (see `enter`).
        pending = self._group.run_remote(_on_rank, function, job, [ray.put(memory)], shards)
        try:
            return ray.get(pending)  # raises as soon as one of them fails
        except ray.exceptions.RayError as error:
            ended = self._group.ended(pending)
            raise diagnose(job.run_dir, self.num_workers, since, str(ended)).error from error

    @property
    def is_open(self) -> bool:
        return self._group.is_open

    def close(self) -> None:
        """End the workers, whatever they do; may be called twice."""
        self._group.close()


def _on_rank(function: OnRank, job: Job, held: list[Any], shards: Shards) -> Any:
    """Runs in a worker."""
    import ray

    enter(job)
    communicator = connected()
    assert isinstance(communicator, Connected)
    communicator.serve(job.experiment.horovod)
    rank = communicator.rank
    try:
        return function(job, ray.get(held[0]), shards[rank], communicator)
    except Exception as error:
        if not (job.run_dir / "errors" / f"rank-{rank}.json").exists():  # as a training does by itself
            record_error(job.run_dir, rank, error)
        raise


def _train(job: Job, memory: Memory, shards: Mapping[str, Any], communicator: Communicator) -> Reports:
    reports: Reports = []
    train_loop_per_worker(job, memory, shards, lambda: communicator, reports.append, communicator.rank)
    return reports
