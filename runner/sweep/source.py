"""Where the jobs of a sweep come from: a grid, or a search that learns from those that ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

FINISHED, PRUNED, FAILED, KILLED = "FINISHED", "PRUNED", "FAILED", "KILLED"


@dataclass(frozen=True)
class Trial:
    """A job, as its source sees it."""

    number: int
    overrides: tuple[str, ...]  # `key=value`, as a command line would have them
    status: str | None = None  # FINISHED, PRUNED, FAILED or KILLED; None: not ended
    value: float | None = None  # the best of checkpoint.monitor
    values: Mapping[float, float] = field(default_factory=dict)  # that metric by epochs trained


class Source(Protocol):
    """Asked by one thread. The same number never stands for other overrides."""

    @property
    def total(self) -> int:
        """How many jobs there will be."""

    def next(self) -> Trial | None:
        """One that is to run now; None where one that runs must end first, or there are no more."""

    def told(self, trial: Trial) -> None:
        """How one ended."""

    def prunes(self, number: int, epochs: float, value: float) -> bool:
        """Whether to stop a job that has trained so many epochs and measured this value."""


class Listed:
    """All jobs are known from the start: a grid."""

    def __init__(self, jobs: Sequence[Sequence[str]], first: int = 0) -> None:
        self.total = len(jobs)
        self._left = [Trial(number, tuple(overrides)) for number, overrides in enumerate(jobs, start=first)]

    def next(self) -> Trial | None:
        return self._left.pop(0) if self._left else None

    def told(self, trial: Trial) -> None:
        pass

    def prunes(self, number: int, epochs: float, value: float) -> bool:
        return False
