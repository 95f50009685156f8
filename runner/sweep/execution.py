"""The jobs of a sweep while they run: which is next, who trains it, how it ended."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from runner.errors import RunnerError
from runner.job import Job, Memory
from runner.known import Known
from runner.prepare import Prepared
from runner.report.console import metrics_line
from runner.report.sweep_screen import JobScreen, SweepScreen
from runner.run_folder import Result, read_result, write_composed
from runner.schema import Experiment
from runner.sweep.best import Best
from runner.sweep.job import SweepJob
from runner.sweep.parent import Parent
from runner.sweep.pool import Lease, Pool
from runner.sweep.population import Member, Population
from runner.sweep.source import FAILED, KILLED, Source, Trial
from runner.sweep_schema import Method, Models, OnFailure
from runner.verbs.train import train_job

STOP_SECONDS = 4.0  # for an interrupted job to end
THREADS = 64
CLOSING = 4  # jobs that may wait for MLflow while others train


class Execution:
    """`checked` makes a job of a trial that the source gives later; `known` are those of before. A job that has no `prepared` was
    done before. Without a pool there are no others."""

    def __init__(
        self,
        settings: Experiment,
        source: Source,
        known: Iterable[SweepJob],
        checked: Callable[[Trial], SweepJob],
        found: Known,
        parent: Parent,
        pool: Pool | Population | None,
        example: Prepared,
        common: Collection[str],
        screen: SweepScreen,
    ) -> None:
        """`example` stands for jobs that are not known yet; `common` are the overrides that all have."""
        self.results: dict[int, tuple[SweepJob, Result]] = {}
        self.best = Best(example.plan.goal)
        self._settings, self._source, self._waiting, self._checked = settings, source, deque(known), checked
        self._found, self._parent, self._pool = found, parent, pool
        self._example, self._common, self._screen = example, common, screen
        self._lock = threading.Lock()  # of the source
        self._ended: SimpleQueue[tuple[SweepJob, Result | None]] = SimpleQueue()  # None: it was not begun
        self._active = 0  # jobs that are not in `results` yet
        self._begins_more = True
        # Prepared while others train; but what tpe tries next depends on how they end.
        self._ahead = 0 if settings.search.method is Method.tpe else 1 + CLOSING
        self._prunes = settings.search.method is Method.asha

    def run(self) -> None:
        """All of them. Raises what asking for the next one raises, and KeyboardInterrupt: then call `stop`."""
        threads = ThreadPoolExecutor(THREADS, "job")
        try:
            while True:
                while self._begins_more and (job := self._next()):
                    row = self._screen.job(
                        job.trial.number, [each for each in job.request.overrides if each not in self._common]
                    )
                    if job.reason is not None:
                        self._refuse(job, job.reason)
                    elif job.prepared is None:
                        self._ended.put((job, self._parent.earlier(job)))
                    else:
                        threads.submit(self._run, job, job.prepared, row)
                    self._active += 1
                if not self._active:
                    return
                job, result = self._next_ended()
                if result is None:
                    continue
                self.best.offer(job.trial.number, result["best"].get(job.monitor))
                with self._lock:
                    self._source.told(job.told(result))
                self._show(job, result)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """What runs ends as KILLED, in seconds."""
        if self._pool is not None:
            self._pool.stop()
        with suppress(Empty):
            while self._active:
                self._next_ended(STOP_SECONDS)

    def _next(self) -> SweepJob | None:
        """The next job, if there is room for it."""
        if self._pool is not None:
            first = self._waiting[0].prepared if self._waiting else None
            resources = (first or self._example).plan.resources
            if self._active >= self._pool.room(resources) + self._ahead:
                return None
        if self._waiting:
            return self._waiting.popleft()
        with self._lock:
            trial = self._source.next()
        if trial is None:
            return None
        with self._screen.held():  # the check sends this process's output elsewhere
            return self._checked(trial)

    def _next_ended(self, seconds: float | None = None) -> tuple[SweepJob, Result | None]:
        job, result = self._ended.get(timeout=seconds)
        self._active -= 1
        if result is not None:
            self.results[job.trial.number] = job, result
        return job, result

    def _show(self, job: SweepJob, result: Result) -> None:
        metrics = result["best"] or result["metrics"]
        validation = {key: value for key, value in metrics.items() if key.startswith("val/")}
        status = job.action.value if job.prepared is None else result["status"]
        is_told = job.prepared is None and job.reason is None  # by the sweep that had it
        error = None if is_told else result.get("error")
        self._screen.ended(job.trial.number, status, metrics_line(validation), error)

    def _refuse(self, job: SweepJob, reason: str) -> None:
        self._begins_more &= self._settings.sweep.on_failure is not OnFailure["stop"]
        nothing: Result = {"run_id": None, "best": {}, "metrics": {}}
        self._ended.put((job, {**nothing, "status": FAILED, "error": reason}))

    def _run(self, job: SweepJob, prepared: Prepared, screen: JobScreen) -> None:
        """In a thread of its own: a job, as soon as there is a session for it, to its end."""
        assert self._pool is not None
        number, resources = job.trial.number, prepared.plan.resources
        lease: Lease | Member | None = None
        result: Result | None = None  # it was not begun
        try:
            lease = self._pool.lease(number, job.experiment, resources, job.request.run_dir)
            if self._begins_more:
                result = self._train(job, prepared, lease, screen)
        except KeyboardInterrupt:
            if lease is not None:
                result = {"status": KILLED, "error": "interrupted"}
        except Exception as error:  # noqa: BLE001 (the other jobs run on)
            if not isinstance(error, RunnerError):
                screen.line("".join(traceback.format_exception(error)))
            result = {"status": FAILED, "error": str(error)}
            if self._settings.sweep.on_failure is OnFailure["stop"]:
                self._begins_more = False  # before another job gets this one's session
        finally:
            if lease is not None:
                lease.release()
        if result and "run_id" not in result:  # its run is told of where it has one
            told = read_result(job.request.run_dir) or {}
            result = {**result, **{key: told[key] for key in ("run_id", "seconds") if key in told}}
        whole = result and {"run_id": None, "best": {}, "metrics": {}, **result}
        self._ended.put((job, whole))

    def _train(self, job: SweepJob, prepared: Prepared, lease: Lease | Member, screen: JobScreen) -> Result:
        number, monitor = job.trial.number, job.monitor
        screen.began()
        data = self._found.data(job.experiment)
        request = replace(job.request, parent_run_id=self._parent.run_id)
        write_composed(request.run_dir / ".hydra", request.yaml, request.overrides)
        keeps_all = self._settings.sweep.models is Models.all
        history: list[dict[str, float]] = []

        def is_pruned(metrics: dict[str, float]) -> bool:
            with self._lock:
                return self._source.prunes(number, metrics["epoch"], metrics[monitor])

        def execute(ranks: Job, memory: Memory, received: Any, restarted: Any) -> None:
            def heard(values: dict[str, Any]) -> None:
                history.extend(values.get("history", ()))
                self.best.offer(number, values.get("best", {}).get(monitor))
                received(values)

            if not keeps_all:
                ranks = replace(ranks, best_only=True, to_beat=self.best.value)
            lease.train(ranks, memory, data, heard, restarted, is_pruned if self._prunes else None)

        draws_later = None if keeps_all else partial(self.best.keep, number)
        result = train_job(request, replace(prepared, data=data), screen, execute, draws_later)
        return {**result, "history": history}
