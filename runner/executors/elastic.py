"""Elastic training: Horovod's elastic driver on Ray. Workers come and go, and the training goes on from its last commit in memory.

Use it where machines are taken away and come back (spot instances, a shared cluster), or for a long training that more workers
may join. Not where the number of workers is fixed: the default restarts a lost worker too, and copies nothing between checkpoints.
Not for dataset.ingest=ray_data. Horovod's rendezvous server listens on all interfaces without authentication: for networks you trust.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from runner import secrets
from runner.diagnosis import diagnose
from runner.errors import TrainingError, first_line
from runner.executors.attempts import EndedError, persistently
from runner.executors.board import Board, started
from runner.executors.elastic_workers import POLL_SECONDS, Workers
from runner.executors.session import RECORD_SECONDS, collect
from runner.job import Job, Memory, Received, Restarted
from runner.plan import Plan
from runner.resize import line
from runner.resources import workers_in_words

CALLS = 64  # of the board, side by side: those of the ranks are short


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job`; `received` gets rank 0's reports, and a line for each change of the workers. Raises TrainingError with the cause.

    Where all workers are lost the training starts again from its last checkpoint, `trainer.max_failures` times.
    """
    persistently(job, lambda is_restart: Elastic(job, memory, received, is_restart).train(), restarted)


class Elastic:
    """One training, on the driver."""

    def __init__(self, job: Job, memory: Memory, received: Received, is_restart: bool) -> None:
        import ray

        self._job, self._received = job, received
        self._node = ray.get_runtime_context().get_node_id()
        name = f"elastic-{uuid.uuid4().hex[:12]}"
        self._board = started(Board, name, CALLS)
        open_job, kept = secrets.hide(job)
        config = {
            "board": name,
            "job": open_job,
            "secrets": ray.put(kept),
            "memory": ray.put(memory),
            "is_restart": is_restart,
            "node": self._node,
        }
        self._workers = Workers(job, config)
        self._size: int | None = None  # workers that train
        self._since, self._seen = time.time(), 0
        self._has_failed = False  # a rank raised an error, since the last change
        self._changes: list[str] = []

    def train(self) -> None:
        """Raises EndedError where the ranks failed, TrainingError where the training must not go on."""
        import ray

        try:
            self._workers.start()
            while not self._workers.finished():
                self._take()
            self._take()
            self._finish()
        finally:
            self._workers.close()
            ray.kill(self._board)

    def _take(self) -> None:
        """What the ranks have said by now."""
        import ray

        try:
            events = ray.get(self._board.events.remote(self._seen, POLL_SECONDS))
        except ray.exceptions.RayError as error:
            raise EndedError(f"the ranks' board is gone: {first_line(error)}") from error
        self._seen += len(events)
        for what, *rest in events:
            if what == "began":
                self._began(*rest)
            elif what == "failed":
                self._fails(*rest)
            else:
                self._reported(*rest)

    def _reported(self, values: dict[str, Any]) -> None:
        if self._changes:
            values.pop("started", None)  # of the training as a whole: see _began
            values |= {"event": ""} if "resumed" in values else {}  # said where it began
        self._received(values)

    def _began(self, plan: Plan, step: int) -> None:
        """Ranks train by this plan from that step on."""
        size, wanted = plan.num_workers, self._job.plan.num_workers
        before, self._size = self._size, size
        values: dict[str, Any] = {} if before is not None else {"started": time.time()}
        if before is None and size == wanted:
            self._received(values)
            return  # as any training
        if before is None:
            why = f"{workers_in_words(size)} of {wanted} are there"
        elif self._workers.lost:
            why = self._cause(before)
            if self._has_failed:
                values["degraded"] = why
                why = f"degraded: {why}"
        elif size == before:
            why = "other workers"
        else:
            why = f"{workers_in_words(abs(size - before))} {'joined' if size > before else 'left'}"
        self._workers.lost.clear()
        self._has_failed, self._since = False, time.time()
        self._changes.append(f"{why}; {line(plan, step, before)}")
        self._received({**values, "event": self._changes[-1], "changes_of_workers": list(self._changes)})

    def _fails(self, place: str, rank: int) -> None:
        """A rank raised an error of its own, which would come again: its place stays empty."""
        hosts, least = self._workers.hosts, self._job.experiment.executor.least
        hosts.ban(place)
        self._has_failed = True
        if hosts.left < least:
            time.sleep(RECORD_SECONDS)
            raise EndedError(f"rank {rank} failed")

    def _cause(self, size: int) -> str:
        collect(self._job.run_dir, self._node)
        account = "\n".join(self._workers.lost)
        return str(diagnose(self._job.run_dir, size, self._since, account).error)

    def _finish(self) -> None:
        workers, size = self._workers, self._size or 0
        collect(self._job.run_dir, self._node)
        error, codes = workers.results()
        if error is not None:
            limit = f"the workers changed more often than executor.reset_limit={self._job.experiment.executor.reset_limit}"
            raise TrainingError(f"{limit}; the last time: {self._cause(size)}")
        if type(workers.unable).__name__ == "TimeoutException":
            raise TrainingError(f"{workers.too_few()}; lost: {self._cause(size)}")
        if workers.unable or not codes or any(codes):
            raise EndedError("\n".join(workers.lost) or str(workers.unable))
