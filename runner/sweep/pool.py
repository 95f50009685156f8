"""The sessions of a sweep: groups of ranks that take one job after another, side by side as far as there is room."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from runner.executors.attempts import persistently
from runner.executors.session import Answer, Kind, Session
from runner.ingest.arrays import Data
from runner.job import Job, Memory, Received, Restarted
from runner.resources import Machine, ResourcePlan
from runner.schema import Experiment


class Lease:
    """A session that one job has until it is trained."""

    def __init__(self, pool: Pool, session: Session, experiment: Experiment) -> None:
        self._pool, self._session, self._experiment = pool, session, experiment
        self._is_released = False

    def train(
        self,
        job: Job,
        memory: Memory,
        data: Data,
        received: Received,
        restarted: Restarted,
        is_pruned: Answer | None = None,
    ) -> None:
        """Train the job, after a lost process again in a new session, `trainer.max_failures` times; then the session is others'.
        Raises TrainingError with the root cause, KeyboardInterrupt after the pool's `stop`; who gets them releases the session."""
        reference = self._pool.share(memory, data)

        def once(is_restart: bool) -> None:
            if is_restart:
                self._session = self._pool.replaced(self._session, self._experiment)
            self._session.train(job, reference, received, is_restart, is_pruned, self._pool.is_stopping)

        persistently(job, once, restarted)
        self.release()

    def release(self) -> None:
        """May be called again."""
        if not self._is_released:
            self._is_released = True
            self._pool.release(self._session)


class Pool:
    """Its methods may be called by many threads. Ray must have been started.

    `folder` is for what Ray Train writes; `at_most` so many sessions at a time, None: as many as fit; `is_shared`: whether a session
    takes a second job.
    """

    def __init__(self, machine: Machine, folder: Path, at_most: int | None, is_shared: bool) -> None:
        self.at_most = at_most
        self._machine, self._folder, self._is_shared = machine, folder, is_shared
        self._changed = threading.Condition()
        self._sessions: list[Session] = []  # open ones, idle or busy
        self._busy: set[int] = set()  # their ids
        self._waiting: list[int] = []  # the numbers of jobs: the lowest is served first
        self._stopping = threading.Event()
        self.is_stopping = self._stopping.is_set
        self._memories: dict[int, tuple[Data, Any]] = {}  # the last data set in Ray's memory, by identity

    def lease(self, number: int, experiment: Experiment, resources: ResourcePlan, run_dir: Path) -> Lease:
        """Wait for a session for job `number`; of those that wait the lowest is served first. Raises KeyboardInterrupt after
        `stop`."""
        is_alone = (
            experiment.horovod.timeline or not self._is_shared
        )  # Horovod writes one for as long as it runs
        kind = Kind.of(experiment, resources, run_dir if is_alone else None)
        with self._changed:
            self._waiting.append(number)
            try:
                session = None
                while session is None:
                    if self._stopping.is_set():
                        raise KeyboardInterrupt
                    session = self._found(experiment, kind) if min(self._waiting) == number else None
                    if session is None:
                        self._changed.wait()
                self._busy.add(id(session))
                return Lease(self, session, experiment)
            finally:
                self._waiting.remove(number)
                self._changed.notify_all()

    def prestart(self, experiment: Experiment, resources: ResourcePlan) -> None:
        """A session that a job like this one will find started, where there is room for it now."""
        with self._changed:
            if self._is_shared and not experiment.horovod.timeline and self._has_room(resources):
                self._open(experiment, Kind.of(experiment, resources))

    def stop(self) -> None:
        """End all sessions; the jobs in them raise KeyboardInterrupt in their threads."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Of a pool without jobs: Ray ends the ranks."""
        with self._changed:
            for session in self._sessions:
                session.close()
            self._sessions.clear()

    def room(self, resources: ResourcePlan) -> int:
        """How many sessions of jobs like this one may be there at a time."""
        count, wanted = 1, resources.total()
        while self._machine.holds(wanted + resources.total()) and count != self.at_most:
            count, wanted = count + 1, wanted + resources.total()
        return count

    def release(self, session: Session) -> None:
        """A session for others, or gone."""
        with self._changed:
            self._busy.discard(id(session))
            if session.kind.alone is not None:
                session.close()
            self._changed.notify_all()

    def replaced(self, session: Session, experiment: Experiment) -> Session:
        """Another one in place of one that a job has ended; or the same, where it has survived."""
        with self._changed:
            if session.is_open:
                return session
            self._busy.discard(id(session))
            new = self._open(experiment, session.kind)
            self._busy.add(id(new))
            return new

    def _found(self, experiment: Experiment, kind: Kind) -> Session | None:
        """An idle session of this kind, a new one, or one in place of an idle one of another kind; None where all are busy."""
        self._forget_closed()
        idle = [session for session in self._sessions if id(session) not in self._busy]
        for session in idle:
            if session.kind == kind:
                return session
        while not self._has_room(kind.resources) and idle:
            idle.pop(0).close()
            self._forget_closed()
        return self._open(experiment, kind) if self._has_room(kind.resources) else None

    def _open(self, experiment: Experiment, kind: Kind) -> Session:
        self._forget_closed()
        session = Session(experiment, kind, self._folder, not self._machine.is_cluster)
        self._sessions.append(session)
        return session

    def _forget_closed(self) -> None:
        self._sessions = [session for session in self._sessions if session.is_open]

    def _has_room(self, wanted: ResourcePlan) -> bool:
        """Beside the sessions that are open. A job that is alone always has: preflight has judged it."""
        if not self._sessions:
            return True
        if self.at_most is not None and len(self._sessions) >= self.at_most:
            return False
        held = (session.kind.resources.total() for session in self._sessions)
        return self._machine.holds(sum(held, wanted.total()))

    def share(self, memory: Memory, data: Data) -> Any:
        """A reference to the memory; the jobs of a sweep mostly have the same data, which is then there once."""
        import ray

        with self._changed:
            known = self._memories.get(id(data))
            if known is None or memory.initial is not None:
                reference = ray.put(memory)
                if memory.initial is not None:
                    return reference
                known = data, reference
                self._memories = {id(data): known}
            return known[1]
