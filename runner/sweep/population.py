"""The members of a population while they train: as a pool gives sessions, this gives each job its place in Tune's population."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import secrets
from runner.diagnosis import Diagnosis, diagnose, tried_in_vain
from runner.errors import TrainingError, first_line
from runner.executors.board import Event, started
from runner.executors.ray_train import scaling
from runner.executors.session import POLL_SECONDS, SPARE_CALLS, collect
from runner.executors.tuned import PopulationBoard
from runner.ingest.arrays import Data
from runner.job import Job, Memory, Received, Restarted
from runner.resources import ResourcePlan
from runner.schema import Experiment, Mode
from runner.sweep.job import IDENTITY, Action, SweepJob, aside, sha256
from runner.sweep.members import Members


class Population:
    """Its methods may be called by many threads. Ray must have been started. Tune begins once all members have come."""

    def __init__(self, settings: Experiment, members: Members, folder: Path) -> None:
        """`folder` is for what Ray Train writes."""
        self._settings, self._members, self._folder = settings, members, folder
        self._lock = threading.Lock()
        self._handed: dict[int, Any] = {}
        self._board: Any = None
        self._fit: Any = None
        self._memory: Any = None
        self._node = ""
        self._stopping = threading.Event()
        self.broken: str | None = None  # why it ended before its end

    def room(self, resources: ResourcePlan) -> int:
        """All of them: Tune lets those wait for which there is no CPU."""
        return len(self._members.options)

    def lease(self, number: int, experiment: Experiment, resources: ResourcePlan, run_dir: Path) -> Member:
        if self._stopping.is_set():
            raise KeyboardInterrupt
        return Member(self, number, experiment, self._members.options[number])

    def stop(self) -> None:
        """End all members, whose threads raise KeyboardInterrupt."""
        self._stopping.set()
        self.end("it was interrupted")

    def close(self) -> None:
        """Of a population whose members have all ended: Tune ends by itself."""

    def end(self, why: str) -> None:
        """Nobody can go on: who is left would wait for those that are gone."""
        with self._lock:
            self.broken = self.broken or why
            if self._board is not None:
                self._board.end.remote()

    def join(self, number: int, job: Job, memory: Memory, resources: ResourcePlan) -> None:
        """Member `number` is ready."""
        import ray

        with self._lock:
            if self._memory is None:
                self._memory = ray.put(memory)  # the same data, and the same first weights if any are given
            open_job, kept = secrets.hide(job)
            # In a list Ray leaves the reference as it is: the board does not unpickle what it hands out.
            self._handed[number] = [ray.put((open_job, kept, self._memory))]
            if len(self._handed) == len(self._members.options) and self.broken is None:
                self._start(resources)

    def events(self, since: int) -> list[Event]:
        """Those from index `since` on; waits for a moment. Raises TrainingError where no more can come."""
        import ray

        if self._stopping.is_set():
            raise KeyboardInterrupt
        if self.broken is not None:
            raise TrainingError(self.broken)
        if self._board is None:
            time.sleep(POLL_SECONDS)
            return []
        try:
            found: list[Event] = ray.get(self._board.events.remote(since, POLL_SECONDS))
            if not found and ray.wait([self._fit], timeout=0)[0]:
                raise TrainingError(f"Tune ended: {ray.get(self._fit) or 'without its members'}")
        except ray.exceptions.RayError as error:
            raise TrainingError(f"Tune's process is gone: {first_line(error)}") from error
        return found

    def diagnose(self, job: Job, since: float, account: str) -> Diagnosis:
        collect(job.run_dir, self._node)
        return diagnose(job.run_dir, job.plan.num_workers, since, account)

    def _start(self, resources: ResourcePlan) -> None:
        import ray

        settings, search = self._settings, self._settings.search
        name = f"population-{uuid.uuid4().hex[:12]}"
        self._node = ray.get_runtime_context().get_node_id()
        calls = len(self._members.options) * (resources.num_workers + 1) + SPARE_CALLS
        board = started(PopulationBoard, name, calls)
        for number in sorted(
            self._handed
        ):  # a member takes that of its number: the board has threads, so one by one
            ray.get(board.put.remote(self._handed[number]))
        options = enumerate(self._members.options)
        spec = {
            "scaling": scaling(resources, settings.scaling.placement_strategy),
            "storage_path": str(self._folder.absolute()),
            "verbose": 2 if settings.verbose else 0,
            "max_failures": settings.trainer.max_failures,
            "horovod": settings.horovod,
            "members": [{"number": number, "options": each} for number, each in options],
            "node": self._node,
            "search": {
                "every": search.perturb_every_epochs,
                "seed": search.seed,
                "maximise": settings.checkpoint.mode is Mode.max,
                "quantile": search.quantile,
                "resample": search.resample,
                "space": self._members.space,
            },
        }
        self._fit = board.fit.remote(name, spec)
        self._board = board  # last: from here on other threads ask it, and look whether Tune has ended


class Member:
    """The place of one job, as a lease is for others."""

    def __init__(
        self, population: Population, number: int, experiment: Experiment, options: dict[str, float]
    ) -> None:
        self._population, self._number, self._experiment = population, number, experiment
        self._options = options  # that it has by now
        self._is_done = False

    def train(
        self,
        job: Job,
        memory: Memory,
        data: Data,
        received: Received,
        restarted: Restarted,
        is_pruned: Any = None,
    ) -> None:
        """Train until its end. Raises TrainingError with the root cause, or with that of another member; KeyboardInterrupt after
        the population's `stop`."""
        population, most = self._population, self._experiment.trainer.max_failures
        population.join(self._number, job, memory, job.plan.resources)
        since, seen, restarts = time.time(), 0, 0
        while True:
            for what, number, *rest in (events := population.events(seen)):
                if number != self._number:
                    continue
                if what == "report":
                    received(self._told(rest[0]))
                elif what == "ended":
                    self._is_done = True
                    if rest[0] is not None:
                        raise TrainingError(f"all ranks: {rest[0]}")
                    return
                else:
                    found = population.diagnose(job, since, rest[0])
                    if found.is_final or what == "failed":
                        raise tried_in_vain(found, restarts, most)
                    since, restarts = time.time(), restarts + 1
                    restarted(restarts, str(found.error))
            seen += len(events)

    def release(self) -> None:
        """May be called again."""
        if not self._is_done:
            self._is_done = True
            self._population.end(f"job {self._number} failed, and a population goes on as a whole")

    def _told(self, values: dict[str, Any]) -> dict[str, Any]:
        """A report, with what is worth to be said of how it goes on."""
        if "resumed" not in values:
            return values
        new, taken, rate = values.pop("options"), values.pop("took_over"), values.pop("learning_rate")
        if taken is None:
            return {**values, "event": None}
        job, epoch = taken
        changed = [key for key in new if new[key] != self._options[key]]
        said = (
            ", ".join(f"{key} {self._options[key]:g} → {new[key]:g}" for key in changed) or "its options stay"
        )
        event = f"took over job {job} at epoch {epoch}: {said}; {rate}"
        self._options = new
        return {**values, "event": event, "changed": [f"{key}={value!r}" for key, value in new.items()]}


def member_of(job: SweepJob, sweep: str) -> SweepJob:
    """What became of a member depends on all of them: no other run is its like but that of the same sweep."""
    identity = sha256(job.identity, sweep, str(job.trial.number))
    tags = {**job.request.tags, IDENTITY: identity}
    return replace(job, identity=identity, request=replace(job.request, tags=tags))


def whole(jobs: Sequence[SweepJob], say: Callable[[str], None]) -> list[SweepJob]:
    """All members with the results they have, or all anew: Tune's knowledge ended with its process."""
    if all(job.action is Action.CACHED for job in jobs):
        return list(jobs)
    if any(job.action is not Action.RUN for job in jobs):
        say("a population goes on as a whole: this one was not finished, and starts anew")
    return [
        aside(replace(job, action=Action.RUN, earlier=None, request=replace(job.request, resumes=None)))
        for job in jobs
    ]
