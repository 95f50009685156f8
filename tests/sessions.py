"""Stand-ins for the sessions of a sweep's pool, and threads of which one knows that they wait."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from runner.resources import Machine, ResourcePlan
from runner.sweep.pool import Lease, Pool
from tests.fakes import make_experiment

ONE, TWO = ResourcePlan(1, 1.0, 0.0), ResourcePlan(2, 1.0, 0.0)


class Session:
    """What it was asked; `ends` are how its trainings end, one after the other, on whichever session."""

    started: list[Session]
    ends: list[Exception | None]
    survives: bool

    def __init__(self, experiment: Any, kind: Any, folder: Path, is_local: bool) -> None:
        self.kind, self.folder, self.is_local, self.is_open = kind, folder, is_local, True
        self.trained: list[tuple[Any, ...]] = []
        Session.started.append(self)

    def train(self, *arguments: Any) -> None:
        self.trained.append(arguments)
        end = Session.ends.pop(0) if Session.ends else None
        if end is not None:
            self.is_open = Session.survives
            raise end

    def close(self) -> None:
        self.is_open = False

    @classmethod
    def forget(cls) -> list[Session]:
        """As at the start of a test; the list of those that will be started."""
        cls.started, cls.ends, cls.survives = [], [], False
        return cls.started


class Waits(threading.Condition):
    """Says when a thread has begun to wait."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = threading.Semaphore(0)

    def wait(self, timeout: float | None = None) -> bool:
        self._begun.release()
        return super().wait(timeout)

    def until_one_more_waits(self) -> None:
        assert self._begun.acquire(timeout=30)
        with self:  # which it has let go of by now
            pass


def pool_of(cpus: float = 2.0, at_most: int | None = None, is_shared: bool = True) -> Any:
    found = Pool(Machine(cpus), Path("/ray"), at_most, is_shared)
    found._changed = Waits()
    return found


def lease(pool: Pool, number: int = 0, resources: ResourcePlan = ONE, **settings: Any) -> Lease:
    """Keys with `__` for a dot."""
    experiment = make_experiment({key.replace("__", "."): value for key, value in settings.items()})
    return pool.lease(number, experiment, resources, Path(f"/run/{number}"))
