"""Between the driver of a sweep and the ranks of a session: which job is next, and what the ranks say of it.

An actor on the driver's node without a CPU of its own. HorovodTrainer.fit() runs in it too, because two of them in one
process disturb each other. Imports no torch: it would take a second of every session's start.
"""

from __future__ import annotations

import threading
import time
from typing import Any

Event = tuple[Any, ...]  # ("report", job, values), ("ended", job, rank, error), ("asks", job, question)


def started(kind: type[Board], name: str, calls: int) -> Any:
    """A board of this name, for so many calls at a time, on this node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": name, "num_cpus": 0, "max_concurrency": calls, "scheduling_strategy": here}
    return ray.remote(kind).options(**options).remote()


class Board:
    """Every method but `fit` returns within `seconds`; they are called side by side."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: list[Any] = []
        self._events: list[Event] = []
        self._answers: dict[int, Any] = {}  # by the index of the question's event
        self._ranks: list[Any] = []  # their actors
        self._is_over = False

    def fit(self, name: str, spec: dict[str, Any]) -> str | None:
        """Run the ranks until they are told to end; Ray's account of what ended them before."""
        from runner.executors import session_fit

        return session_fit.fit(name, spec)

    def enlist(self, rank: Any) -> None:
        """A rank that is ready."""
        with self._changed:
            self._ranks.append(rank)
        if self._is_over:
            self.end()

    def end(self) -> None:
        """End the ranks, whatever they do; fit() then fails, and frees what it holds. (It would not if this actor were killed:
        Ray keeps a placement group for as long as its driver lives.)"""
        import ray

        self._is_over = True
        for rank in self._ranks:
            ray.kill(rank)

    def put(self, job: Any) -> None:
        """Hand out a job, as what the ranks get."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def take(self, number: int, seconds: float) -> tuple[bool, Any]:
        """(whether job `number` is there by now, the job)."""
        with self._changed:
            is_there = self._changed.wait_for(lambda: len(self._jobs) > number, seconds)
            return is_there, self._jobs[number] if is_there else None

    def tell(self, event: Event) -> int:
        """Its index."""
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
            return len(self._events) - 1

    def events(self, since: int, seconds: float) -> list[Event]:
        """Those from index `since` on; waits for the first."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._events) > since, seconds)
            return self._events[since:]

    def answer(self, index: int, answer: Any) -> None:
        with self._changed:
            self._answers[index] = answer
            self._changed.notify_all()

    def ask(self, event: Event, seconds: float) -> Any:
        """The driver's answer; None where it gives none in time."""
        index = self.tell(event)
        deadline = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: index in self._answers, deadline - time.monotonic())
            return self._answers.pop(index, None)
