"""Warm sessions: ranks that are started once and train many jobs, within one HorovodTrainer.fit().

Use it for sweeps: a further job starts within milliseconds. It restarts nothing; who uses it does (sweep/pool.py). Not for
one long training, where it saves nothing.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner import secrets
from runner.communicator import environment
from runner.errors import first_line
from runner.executors import nodes
from runner.executors.attempts import EndedError
from runner.executors.board import Board, Event, started
from runner.executors.live_rank import TOGETHER
from runner.executors.ray_train import scaling
from runner.ingest import ray_data
from runner.job import Job, Memory, Received
from runner.profile import TIMELINE
from runner.resources import ResourcePlan
from runner.schema import Experiment, Ingest, Placement

POLL_SECONDS = 0.5  # that one look at the board takes at most
RECORD_SECONDS = 1.0  # for the other ranks to tell how they ended, after the first that failed
SPARE_CALLS = 8  # threads of the board besides those in which ranks wait

Answer = Callable[[dict[str, float]], bool]


@dataclass(frozen=True)
class Kind:
    """What the ranks of a session have in common. Jobs of one kind may share one."""

    resources: ResourcePlan
    placement: Placement
    settings: tuple[tuple[str, str], ...]  # HOROVOD_*, which are read when the ranks connect
    launch: str  # how Ray reaches the hosts
    alone: Path | None = None  # the folder of the one job that it is for

    @classmethod
    def of(cls, experiment: Experiment, resources: ResourcePlan, alone: Path | None = None) -> Kind:
        horovod = experiment.horovod
        own = environment(horovod, experiment.trainer.deterministic)
        launch = (
            horovod.nics,
            horovod.timeout_s,
            horovod.key,
            horovod.ssh_port,
            horovod.ssh_identity_file,
            horovod.ssh_str,
        )
        return cls(
            resources,
            experiment.scaling.placement_strategy,
            tuple(sorted(own.items())),
            repr(launch),
            alone,
        )


class Session:
    """Started without waiting; `train` is called by one thread at a time."""

    def __init__(self, experiment: Experiment, kind: Kind, folder: Path, is_local: bool) -> None:
        """`folder` is for what Ray Train writes; `is_local`: Ray runs on this machine alone."""
        import ray

        self.kind, self.is_open = kind, True
        self._ranks = kind.resources.num_workers
        self._name = f"session-{uuid.uuid4().hex[:12]}"
        self._node = ray.get_runtime_context().get_node_id()
        self._board = started(Board, self._name, self._ranks + SPARE_CALLS)
        spec = {
            "scaling": scaling(kind.resources, kind.placement),
            "storage_path": str(folder.absolute()),
            "verbose": 2 if experiment.verbose else 0,
            "horovod": experiment.horovod,
            "deterministic": experiment.trainer.deterministic,
            "timeline": kind.alone / TIMELINE if kind.alone and experiment.horovod.timeline else None,
            "node": self._node,
            "is_local": is_local and experiment.dataset.ingest is not Ingest.ray_data,
        }
        self._fit = self._board.fit.remote(self._name, spec)
        self._jobs, self._seen = 0, 0

    def train(
        self,
        job: Job,
        memory: Any,
        received: Received,
        is_restart: bool = False,
        is_pruned: Answer | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train one job; `memory` is a reference to its Memory in Ray. `received` gets rank 0's reports, `is_pruned` the metrics
        of each validation.

        Raises EndedError where the ranks failed; the session is closed then, unless all of them failed together. Raises
        KeyboardInterrupt when `stopping` says so.
        """
        import ray

        number, self._jobs = self._jobs, self._jobs + 1
        open_job, kept = secrets.hide(job)
        shards, memory = _streamed(job, memory)
        # In a list Ray leaves the reference as it is: the board does not unpickle what it hands out.
        handed = ray.put((open_job, kept, memory, shards, is_restart, is_pruned is not None))
        self._board.put.remote([handed])
        ended: dict[int, str | None] = {}
        failed_at: float | None = None
        while len(ended) < self._ranks:
            if stopping():
                self.close()
                raise KeyboardInterrupt
            if failed_at is not None and time.monotonic() - failed_at > RECORD_SECONDS:
                break
            for index, (what, of, *rest) in self._events():
                if of != number:
                    continue
                if what == "report":
                    received(rest[0])
                elif what == "asks":
                    assert is_pruned is not None
                    self._board.answer.remote(index, is_pruned(rest[0]))
                else:
                    rank, error = rest
                    ended[rank] = error
                    if error is not None and failed_at is None:
                        failed_at = time.monotonic()
        collect(job.run_dir, self._node)
        errors = set(ended.values())
        if errors == {None}:
            return
        if len(ended) < self._ranks or errors != {TOGETHER}:
            self.close()
        raise EndedError("a rank failed")

    def close(self) -> None:
        """End the ranks, whatever they do, without waiting for it; may be called twice."""
        if self.is_open:
            self.is_open = False
            self._board.end.remote()

    def _events(self) -> list[tuple[int, Event]]:
        """The new ones with their indices. Raises EndedError when the ranks are gone."""
        import ray

        try:
            events = ray.get(self._board.events.remote(self._seen, POLL_SECONDS))
            if not events and ray.wait([self._fit], timeout=0)[0]:
                account = ray.get(self._fit) or "its ranks ended"
                self.close()
                raise EndedError(account)
        except ray.exceptions.RayError as error:
            self.close()
            raise EndedError(f"the session's process is gone: {first_line(error)}") from error
        first, self._seen = self._seen, self._seen + len(events)
        return list(enumerate(events, start=first))


def _streamed(job: Job, memory: Any) -> tuple[list[Mapping[str, Any]], Any]:
    """Each rank's share of what Ray Data streams, and the memory without it."""
    import ray

    if job.experiment.dataset.ingest is not Ingest.ray_data:
        return [], memory
    whole: Memory = ray.get(memory)
    shards, splits = ray_data.dealt(whole.splits, job.plan, job.experiment.seed)
    return shards, ray.put(replace(whole, splits=splits))


def collect(run_dir: Path, node: str) -> None:
    """Records of ranks on other nodes; a node that is gone keeps its own."""
    import ray

    if sum(each["Alive"] for each in ray.nodes()) > 1:
        with contextlib.suppress(ray.exceptions.RayError):
            nodes.collect(run_dir, run_dir, but_node=node)
