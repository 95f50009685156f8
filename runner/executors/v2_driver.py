"""The driver of a training on Ray Train V2: what the ranks report, which job each group of them gets, whether there is another one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner import going_on, secrets
from runner.errors import LaunchError, RunnerError, TrainingError, first_line
from runner.executors.attempts import Attempts
from runner.executors.board import Event
from runner.executors.session import collect
from runner.ingest import ray_data
from runner.job import Job, Memory, Received, Restarted
from runner.plan import make_plan
from runner.resources import workers_in_words
from runner.schema import Ingest

POLL_SECONDS = 10.0  # that one look at the board takes at most
RECORD_SECONDS = 0.5  # for the other ranks to write down what happened to them


class Driver:
    """Hears what the ranks report, gives them their job, and says whether there is another attempt."""

    def __init__(
        self, job: Job, memory: Memory, board: Any, received: Received, restarted: Restarted
    ) -> None:
        import ray

        self._job, self._splits = job, memory.splits
        if job.experiment.dataset.ingest is Ingest.ray_data:
            memory = replace(memory, splits=ray_data.kept(memory.splits))
        self._memory = ray.put(memory)
        self._board, self._received = board, received
        self._attempts = Attempts(job, restarted)
        self._final: RunnerError | None = None
        self._waits_since: float | None = time.monotonic()  # for a group's ranks
        self._groups = 0  # of workers, that were started
        self._change: str | None = None  # since the one before it
        self._handed: Any = None  # what the ranks of the last one get
        self.node = ray.get_runtime_context().get_node_id()

    def follow(self, running: Any) -> None:
        """Until the controller's `running` is over. Raises what it raises."""
        import ray

        seen, is_over = 0, False
        while not is_over:
            news = self._board.events.remote(seen, POLL_SECONDS)
            ray.wait([news, running])  # for whichever is first
            if is_over := bool(ray.wait([running], timeout=0)[0]):
                news = self._board.events.remote(seen, 0.0)
            events = ray.get(news)
            for index, event in enumerate(events, start=seen):
                self._hear(index, event)
            seen += len(events)
            self._check_waiting()
        ray.get(running)

    def _check_waiting(self) -> None:
        """For the fewest workers V2 itself would wait for ever. Raises LaunchError."""
        experiment, since = self._job.experiment, self._waits_since
        fewest, limit = experiment.executor.min_workers, experiment.horovod.placement_group_timeout_s
        if fewest is not None and since is not None and time.monotonic() - since > limit:
            room = f"there was no room for {workers_in_words(fewest)} in {limit} s"
            raise LaunchError(f"{room} (horovod.placement_group_timeout_s)")

    def explained(self, error: BaseException) -> RunnerError:
        """The root cause of the training's end."""
        if isinstance(error, RunnerError):
            return error
        return self._final or TrainingError(f"Ray Train's controller ended: {first_line(error)}")

    def _hear(self, index: int, event: Event) -> None:
        what, said = event
        if what == "report":
            if "resumed" in said and self._change is not None:
                said, self._change = said | {"event": self._change}, None
            self._received(said)
        elif what == "starts":
            self._start(said)
        elif what == "joins":
            self._waits_since = None
            self._board.answer.remote(index, self._handed)
        else:
            time.sleep(RECORD_SECONDS)
            collect(self._job.run_dir, self.node)
            self._final = self._final or self._attempts.failed(said)
            self._waits_since = time.monotonic()
            self._board.answer.remote(index, self._final is None)

    def _start(self, workers: int) -> None:
        """A group of so many is about to start."""
        import ray

        self._groups, self._handed = self._groups + 1, None
        shards: list[Mapping[str, Any]] = [{}] * workers
        try:
            if workers != self._job.plan.num_workers:
                self._job, self._change = resized(self._job, workers)
                self._attempts.job = self._job
            if self._job.experiment.dataset.ingest is Ingest.ray_data:  # V2 knows no stream of one rank alone
                shards, _ = ray_data.dealt(self._splits, self._job.plan, self._job.experiment.seed)
        except RunnerError as error:  # the ranks get no job, and end
            self._final = error
            return
        handed = (secrets.hide(self._job), shards, self._memory, self._groups > 1)
        self._handed = [ray.put(handed)]  # in a list Ray leaves the reference as it is


def resized(job: Job, workers: int) -> tuple[Job, str | None]:
    """`job` for so many workers, from its last checkpoint on, and what changes in words. Raises ConfigError where that cannot be."""
    experiment = job.experiment
    experiment = replace(experiment, scaling=replace(experiment.scaling, num_workers=workers))
    manifest = going_on.newest(job.run_dir)
    resources = replace(job.plan.resources, num_workers=workers)
    plan = make_plan(experiment, job.data, resources, going_on.position(manifest))
    job = replace(job, experiment=experiment, plan=plan)
    if manifest is None:
        return job, None
    return job, going_on.check(manifest, experiment, plan, job.data, is_finished=False)
