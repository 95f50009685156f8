"""An elastic training from the inside: the same training again and again, by whatever ranks there are, from the last commit."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from runner.communicator import HorovodCommunicator, LostPeerError, lost_peer
from runner.diagnosis import account_of
from runner.executors.connections import Connections
from runner.executors.joined import joined
from runner.job import Job, Memory, enter
from runner.plan import START
from runner.process_state import ProcessState
from runner.rank_log import captured
from runner.resize import resized
from runner.worker import train_loop_per_worker

# Horovod 0.28.1 keeps what these say when it connects again, and crashes where it reads them again: one of them once is all that it
# takes (ParameterManager::BayesianParameter::SetValue writes behind the end of its values).
UNUSABLE = ("HOROVOD_CYCLE_TIME",)
ONCE = (*UNUSABLE, "HOROVOD_FUSION_THRESHOLD")


def serve(place: str, config: dict[str, Any]) -> None:
    """Runs in a Ray worker, to the end of the training."""
    import horovod.torch as hvd
    import ray

    from runner import secrets
    from runner.executors.held import Held

    job: Job = secrets.reveal(config["job"], ray.get(config["secrets"]))
    enter(job)  # what is unpickled below may be of the user's modules
    rank = Rank(job, ray.get(config["memory"]), place, config)
    # Between two trainings a process is no rank: what it prints then is in a log of its own.
    with captured(job.run_dir / "logs" / f"worker-{place}.log"):
        connections = Connections()
        rank.connect()
        connections.after()
        hvd.elastic.run(rank.train)(Held(job.experiment.executor.commit_steps, connections))


class Rank:
    """A process that is a rank, though not always the same one."""

    def __init__(self, job: Job, memory: Memory, place: str, config: dict[str, Any]) -> None:
        import ray

        self._job, self._memory, self._place = job, memory, place
        self._board = ray.get_actor(config["board"])
        self._is_restart = config["is_restart"]
        self._delivers = ray.get_runtime_context().get_node_id() != config["node"]
        self._is_connected = False
        self._process = ProcessState()

    def connect(self) -> HorovodCommunicator:
        communicator = joined(self._job, ONCE if self._is_connected else UNUSABLE)
        self._is_connected = True
        for name in ONCE:
            os.environ.pop(name, None)  # before Horovod connects anew
        return communicator

    def train(self, held: Any) -> None:
        """Train until the end, or until the workers change; Horovod then calls it again."""
        from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

        self._process.restore(self._job.experiment.trainer.compile)
        communicator = self.connect()
        rank, size = communicator.rank, communicator.size
        os.environ |= {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)}
        try:
            job, step = self._job_of(size, held, communicator)
            self._tell("began", job.plan, step, rank=rank)

            def report(values: dict[str, Any]) -> None:
                self._tell("report", values, rank=rank)

            goes_on = self._is_restart or held.found is not None
            measured = train_loop_per_worker(
                job,
                self._memory,
                {},
                lambda: communicator,
                report,
                rank,
                goes_on,
                delivers=self._delivers,
                commits=held,
            )
        except Exception as error:
            if isinstance(lost_peer(error), LostPeerError):
                raise HorovodInternalError(account_of(error)) from error
            self._tell("failed", self._place, rank)  # each for itself
            raise
        if measured is not None:
            raise HostsUpdatedInterrupt(held.skips_sync)

    def _job_of(self, size: int, held: Any, communicator: HorovodCommunicator) -> tuple[Job, int]:
        """The job for so many ranks, and the step that it goes on from. Collective."""
        from runner import going_on

        job, position = self._job, held.position
        if position is None:
            position = START
            if job.resumes or self._is_restart:
                manifest = going_on.newest(job.run_dir) if communicator.rank == 0 else None
                position = communicator.broadcast(going_on.position(manifest))
        experiment, plan = resized(job.experiment, job.plan, job.data, size, position)
        return replace(job, experiment=experiment, plan=plan), position.step

    def _tell(self, *event: Any, rank: int = 0) -> None:
        """The driver; of what all ranks say alike rank 0's word is enough."""
        import ray

        if rank == 0:
            ray.get(self._board.tell.remote(event))
