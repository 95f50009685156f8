"""Horovod's own RayExecutor: Ray's actors joined by Horovod, without Ray Train.

Use it for its start (2 workers on two cores train 2.8 s after the launch, where horovod_trainer's take 4.6 s) and where each host is
to have as many workers (`executor.num_hosts` × `executor.num_workers_per_host`). Not for elastic training: the number of workers is
fixed for a run. runner/replicas.py is its stateful form.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

from runner.communicator import HorovodCommunicator
from runner.executors.attempts import EndedError, persistently
from runner.executors.board import Board, started
from runner.executors.ray_group import RayGroup, Shards, connected, dealt
from runner.executors.session import collect
from runner.job import Job, Memory, Received, Restarted, enter
from runner.profile import TIMELINE
from runner.worker import train_loop_per_worker

CALLS = 4  # of the board at a time: a rank's, the driver's, and one that a lost attempt has left
WAIT_SECONDS = 30.0  # of one call for reports


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job` on Ray; on the driver, `received` gets rank 0's reports, and `restarted` the number of each restart
    and why. Raises TrainingError with the root cause, LaunchError where the workers do not start.

    Ray must have been started (ray_cluster.start).
    """
    import ray

    here = ray.get_runtime_context().get_node_id()

    def train(is_restart: bool) -> None:
        reports = Reports(received)
        shards, kept = dealt(job, memory)
        try:
            with group_of(job) as group:
                # In a list Ray leaves the reference as it is: what it stands for may be of the user's modules.
                arguments = job, [ray.put(kept)], shards, reports.board, is_restart
                reports.follow(group, group.run_remote(_on_rank, *arguments))
        except EndedError:
            collect(job.run_dir, here)
            raise
        finally:
            reports.close()

    persistently(job, train, restarted)
    collect(job.run_dir, here)


def group_of(job: Job, executable: type | None = None) -> RayGroup:
    """The workers of a job, with what the config gives each of them."""
    experiment, resources = job.experiment, job.plan.resources
    hosts, horovod = experiment.executor.num_hosts, experiment.horovod
    workers: dict[str, Any] = {
        "cpus_per_worker": resources.cpus_per_worker,
        "use_gpu": resources.use_gpu,
        "gpus_per_worker": resources.gpus_per_worker or None,
    }
    if hosts is None:
        each, workers["num_workers"] = 1, resources.num_workers
    else:
        each = resources.num_workers // hosts
        workers |= {"num_hosts": hosts, "num_workers_per_host": each}
    besides = {name: amount * each for name, amount in resources.custom}
    timeline = job.run_dir / TIMELINE if horovod.timeline else None
    own = replace(horovod, key=None, ssh_str=None)  # of the driver alone
    connect = partial(HorovodCommunicator, own, experiment.trainer.deterministic, timeline)
    return RayGroup(horovod, workers, connect, experiment.scaling.placement_strategy, besides, executable)


class Reports:
    """What rank 0 says while it trains, by way of a board."""

    def __init__(self, received: Received) -> None:
        self.board = started(Board, f"reports-{uuid.uuid4().hex[:12]}", CALLS)
        self._received, self._seen = received, 0

    def follow(self, group: RayGroup, pending: list[Any]) -> None:
        """Hand on the reports until all of `pending` are there. Raises EndedError as soon as a rank has failed."""
        import ray

        waiting, asked = list(pending), self._asked(WAIT_SECONDS)
        try:
            while waiting:
                ((ready,), _) = ray.wait([asked, *waiting], num_returns=1)
                if ready == asked:
                    self._take(asked)
                    asked = self._asked(WAIT_SECONDS)
                else:
                    waiting.remove(ready)
                    ray.get(ready)
            self._take(self._asked(0))
        except ray.exceptions.RayError as error:
            ended = group.ended(pending)
            with contextlib.suppress(ray.exceptions.RayError):
                self._take(self._asked(0))
            raise ended from error

    def close(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.board)

    def _asked(self, seconds: float) -> Any:
        return self.board.events.remote(self._seen, seconds)

    def _take(self, asked: Any) -> None:
        import ray

        events = ray.get(asked)
        self._seen += len(events)
        for (values,) in events:
            self._received(values)


def _on_rank(job: Job, held: list[Any], shards: Shards, board: Any, is_restart: bool) -> None:
    """Runs in a worker."""
    import ray

    enter(job)  # what is unpickled below may be of the user's modules
    communicator = connected()
    rank = communicator.rank

    def report(values: dict[str, Any]) -> None:
        if rank == 0:
            ray.get(board.tell.remote((values,)))

    memory = ray.get(held[0])
    train_loop_per_worker(job, memory, shards[rank], lambda: communicator, report, rank, is_restart)
