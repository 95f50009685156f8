"""Checks before a launch: each has a name, can be left out by it, and says what it found or what to type."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from runner.errors import RunnerError

PASSED, FAILED, SKIPPED = "ok", "FAIL", "skip"
Made = TypeVar("Made")


@dataclass(frozen=True)
class Outcome:
    name: str
    status: str
    text: str  # what was found, or the line that says what to type
    seconds: float
    error: RunnerError | None = None


class Checks:
    """Runs the checks that are not in `skip`. One that fails raises its RunnerError, unless all are to be seen
    (`keep_going`)."""

    def __init__(self, skip: Collection[str] = (), keep_going: bool = False) -> None:
        self._skip, self._keep_going = skip, keep_going
        self._threads = ThreadPoolExecutor(4, "check")
        self._begun: list[Future[Outcome]] = []
        self._found: dict[str, Outcome] = {}

    def need(self, name: str, make: Callable[[], Made], say: Callable[[Made], str]) -> Made:
        """What all that follows stands on: it cannot be left out, and always raises."""
        made: list[Made] = []

        def check() -> str:
            made.append(make())
            return say(made[0])

        outcome = self._found[name] = _outcome(name, check)
        if outcome.error is not None:
            raise outcome.error
        return made[0]

    def run(self, name: str, check: Callable[[], str], must: bool = False) -> None:
        """Here and now. `must`: what follows stands on it, so that it raises even where all are to be seen."""
        outcome = self._checked(name, check)
        self._take(outcome)
        if must and outcome.error is not None:
            raise outcome.error

    def begin(self, name: str, check: Callable[[], str]) -> None:
        """Beside what follows, until `join`."""
        self._begun.append(self._threads.submit(self._checked, name, check))

    def join(self) -> None:
        """Wait for those that were begun."""
        begun, self._begun = self._begun, []
        self._threads.shutdown(wait=False)
        for each in begun:
            self._take(each.result())

    def _checked(self, name: str, check: Callable[[], str]) -> Outcome:
        if name in self._skip:
            return Outcome(name, SKIPPED, f"skip_checks=[{name}]", 0.0)
        return _outcome(name, check)

    @property
    def outcomes(self) -> list[Outcome]:
        """By name, the last of each, in the order in which they ended."""
        return list(self._found.values())

    def _take(self, outcome: Outcome) -> None:
        self._found[outcome.name] = outcome
        if outcome.error is not None and not self._keep_going:
            raise outcome.error


def _outcome(name: str, check: Callable[[], str]) -> Outcome:
    started = time.monotonic()
    try:
        text = check()
    except RunnerError as error:
        return Outcome(name, FAILED, str(error), time.monotonic() - started, error)
    return Outcome(name, PASSED, text, time.monotonic() - started)
