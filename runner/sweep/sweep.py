"""A sweep: the jobs of one command on warm sessions, each a child of one MLflow run; what was done before is not done again."""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from runner import interrupts, prepare
from runner.errors import RunnerError
from runner.executors import ray_cluster
from runner.identity import is_immaterial
from runner.known import Known
from runner.recording import INTERRUPTED_SECONDS, look_back
from runner.report.console import Screen, metrics_line
from runner.report.sweep_screen import JobScreen, SweepScreen
from runner.run_folder import Result, write_composed
from runner.schema import Experiment
from runner.sweep import job as jobs
from runner.sweep.job import Action, Compose, SweepJob
from runner.sweep.parent import Parent, Store, folder_of, own
from runner.sweep.pool import Pool
from runner.sweep.source import FAILED, FINISHED, KILLED, Listed, Source, Trial
from runner.sweep_schema import Isolation, Method, Models, OnFailure
from runner.verbs.train import train_job
from runner.worker import Job, Memory

OpenSource = Callable[[Experiment, Sequence[Trial]], Source]
STOP_SECONDS = 4.0  # for an interrupted job to end
CLOSING = 4  # jobs whose record is still being written


class Sweep:
    """One command. `folder` is where a new one goes; `first` are the overrides of a job that stands for all."""

    def __init__(
        self, compose: Compose, roots: tuple[str, ...], folder: Path, screen: Screen, first: Sequence[str]
    ) -> None:
        self._compose, self._roots, self._plain = compose, roots, screen
        self._outputs, self._known = Path.cwd() / "outputs", Known()
        self.folder = folder
        self._first = jobs.load(compose, Trial(0, tuple(first)), roots, folder, self._known)
        self.settings: Experiment = self._first.experiment
        self.results: dict[int, tuple[SweepJob, Result]] = {}
        self._lock = threading.Lock()  # of the source, and of the best value
        self._best: float | None = None
        self._ended: SimpleQueue[tuple[SweepJob, Result]] = SimpleQueue()
        self._active = 0  # jobs that are not in `results` yet
        self._parent: Parent | None = None
        self._pool: Pool | None = None

    def run(self, typed: Sequence[str], open_source: OpenSource) -> int:
        """Run what the command, `typed`, means; returns the exit code. Raises RunnerError where nothing was started."""
        look_back(self._outputs, self._plain.line)  # before the store is asked what was done
        name = self._name(typed)
        self._store = Store.open(self.settings, self._outputs, name, self._plain.line)
        self.folder = folder_of(self._store, self.folder)
        with_values = self.settings.search.method is Method.asha
        source = open_source(self.settings, self._store.trials(self._first.monitor, with_values))
        known = [self._compared(trial) for trial in _all(source)]
        if self.settings.sweep.dry_run:
            self._list([jobs.check(job, self._known) for job in known])
            return 0
        known = [self._checked(job) for job in known]
        screen = SweepScreen(self._plain, source.total)
        try:
            self._start(known or [self._checked(self._first)], name)
            screen.start()
            self._run_all(source, deque(known), screen)
        except KeyboardInterrupt:
            interrupts.ending()
            screen.stop()
            self._stop()
            self._finish(KILLED)
            raise
        finally:
            screen.stop()
        return self._finish()

    def _name(self, typed: Sequence[str]) -> str:
        """What the same sweep is known by when it is started again, with the same code and data."""
        material = [
            each
            for each in typed
            if each.startswith("search.") or not (is_immaterial(each) or each.startswith("hydra."))
        ]
        material = [
            each for each in material if not each.startswith("search.trials=")
        ]  # it may be made longer
        return hashlib.sha256(repr((self._first.identity, material)).encode()).hexdigest()

    def _compared(self, trial: Trial) -> SweepJob:
        job = jobs.load(self._compose, trial, self._roots, self.folder, self._known)
        return jobs.compared(job, self._store.runs(job.basis), self.settings.sweep.retry_failed)

    def _checked(self, job: SweepJob) -> SweepJob:
        return jobs.check(job, self._known) if job.action in (Action.RUN, Action.RESUME) else job

    def _start(self, known: Sequence[SweepJob], name: str) -> None:
        """Ray and the parent run, side by side; then the sessions of the first jobs."""
        first = next((job for job in known if job.prepared is not None), None)
        with ThreadPoolExecutor(1) as background:
            opening = background.submit(
                Parent.open, self.settings, self._outputs, self.folder, self._store, name, self._plain.line
            )
            if first is not None and first.prepared is not None:
                self._pool = self._opened_pool(first.prepared)
                for job in known:
                    if job.prepared is not None:
                        self._pool.prestart(job.experiment, job.prepared.plan.resources)
            self._parent = opening.result()

    def _opened_pool(self, first: prepare.Prepared) -> Pool:
        if first.address is None:
            ray_cluster.start(None, first.machine.cpus, self._roots, self.settings.verbose)
        sweep = self.settings.sweep
        is_shared = sweep.isolation is Isolation.session
        return Pool(first.machine, self.folder / "ray", sweep.max_concurrent, is_shared)

    def _run_all(self, source: Source, waiting: deque[SweepJob], screen: SweepScreen) -> None:
        is_stopped = False
        ahead = 0 if self.settings.search.method is Method.tpe else 1  # prepared while others train
        threads = ThreadPoolExecutor(64, "job")
        try:
            while True:
                while not is_stopped and (job := self._next(source, waiting, screen, ahead)):
                    if job.prepared is None:
                        self._ended.put((job, self._known_result(job)))
                    else:
                        threads.submit(
                            self._job, job, source, screen.job(job.trial.number, job.request.overrides)
                        )
                    self._active += 1
                if not self._active:
                    return
                job, result = self._next_ended()
                with self._lock:
                    source.told(job.told(result))
                status = job.action.value if job.prepared is None else result["status"]
                outcome = result.get("error") or metrics_line(
                    _validation(result["best"] or result["metrics"])
                )
                screen.ended(job.trial.number, job.request.overrides, status, outcome)
                stops = self.settings.sweep.on_failure is OnFailure["stop"]
                is_stopped |= stops and result["status"] == FAILED
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _next_ended(self, seconds: float | None = None) -> tuple[SweepJob, Result]:
        job, result = self._ended.get(timeout=seconds)
        self._active -= 1
        self.results[job.trial.number] = job, result
        return job, result

    def _next(
        self, source: Source, waiting: deque[SweepJob], screen: SweepScreen, ahead: int
    ) -> SweepJob | None:
        """The next job, if there is room for it."""
        if self._pool is not None:
            some = waiting[0] if waiting else self._first
            resources = (some.prepared or self._prepared_first()).plan.resources
            if self._active >= self._pool.room(resources) + ahead + (CLOSING if ahead else 0):
                return None
        if waiting:
            return waiting.popleft()
        with self._lock:
            trial = source.next()
        if trial is None:
            return None
        with screen.held():
            return self._checked(self._compared(trial))

    def _prepared_first(self) -> prepare.Prepared:
        if self._first.prepared is None:
            self._first = jobs.check(self._first, self._known)
        assert self._first.prepared is not None
        return self._first.prepared

    def _job(self, job: SweepJob, source: Source, screen: JobScreen) -> None:
        """In a thread of its own: a job from its record to its end."""
        try:
            result = self._train(job, source, screen)
        except KeyboardInterrupt:
            result = {"status": KILLED, "error": "interrupted"}
        except Exception as error:  # noqa: BLE001 (the other jobs run on)
            if not isinstance(error, RunnerError):
                screen.line("".join(traceback.format_exception(error)))
            result = {"status": FAILED, "error": str(error)}
        self._ended.put((job, {"best": {}, "metrics": {}, **result}))

    def _train(self, job: SweepJob, source: Source, screen: JobScreen) -> Result:
        assert job.prepared is not None
        assert self._parent is not None
        assert self._pool is not None
        pool, number, goal = self._pool, job.trial.number, job.prepared.plan.goal
        data = self._known.data(job.experiment)
        request = replace(job.request, parent_run_id=self._parent.run_id)
        write_composed(request.run_dir / ".hydra", request.yaml, request.overrides)
        history: list[dict[str, float]] = []

        def began(rank_job: Job) -> Job:
            screen.began()
            keeps_all = self.settings.sweep.models is Models.all
            return rank_job if keeps_all else replace(rank_job, to_beat=self._best)

        def is_pruned(metrics: dict[str, float]) -> bool:
            with self._lock:
                return source.prunes(number, metrics["epoch"], metrics[goal.monitor])

        def execute(rank_job: Job, memory: Memory, received: Any, restarted: Any) -> None:
            def heard(values: dict[str, Any]) -> None:
                history.extend(values.get("history", ()))
                value = values.get("best", {}).get(goal.monitor)
                with self._lock:
                    self._best = value if goal.is_better(value, self._best) else self._best
                received(values)

            prunes = self.settings.search.method is Method.asha
            pool.train(rank_job, memory, data, heard, restarted, began, is_pruned if prunes else None)

        prepared = replace(job.prepared, data=data)
        return {**train_job(request, prepared, screen, execute), "history": history}

    def _known_result(self, job: SweepJob) -> Result:
        """Of a job that is not run again; shown by a child of this sweep."""
        assert job.earlier is not None
        assert self._parent is not None
        if not own(self._store.jobs, job):
            self._parent.adopt(job, self._outputs)
        run = job.earlier
        best = {
            key.removeprefix("best/"): value for key, value in run.metrics.items() if key.startswith("best/")
        }
        result: Result = {
            "run_id": run.run_id,
            "status": jobs.status_of(run),
            "best": best,
            "metrics": run.metrics,
        }
        if "runner.error" in run.tags:
            result["error"] = run.tags["runner.error"]
        with self._lock:
            value = best.get(job.monitor)
            self._best = (
                value if self._prepared_first().plan.goal.is_better(value, self._best) else self._best
            )
        return result

    def _list(self, known: Sequence[SweepJob]) -> None:
        """sweep.dry_run=true."""
        for job in known:
            assert job.prepared is not None
            plan, what = job.prepared.plan, job.action.value
            run = f" (run {job.earlier.run_id})" if job.earlier else ""
            said = f"job {job.trial.number}  {' '.join(job.request.overrides)}  {what}{run}"
            self._plain.line(f"{said}  {'; '.join(plan.lines())}")

    def _stop(self) -> None:
        """Ctrl-C: what runs ends as KILLED, in seconds."""
        if self._pool is not None:
            self._pool.stop()
        with suppress(Empty):
            while self._active:
                self._next_ended(STOP_SECONDS)

    def values(self) -> dict[int, float | None]:
        """The best of checkpoint.monitor by job."""
        return {number: job.told(result).value for number, (job, result) in self.results.items()}

    def _finish(self, status: str | None = None) -> int:
        """The table, the leaderboard, the parent's status; returns the exit code: 1 if a job failed."""
        if self._pool is not None and status is None:
            self._pool.close()
        ordered = [self.results[number] for number in sorted(self.results)]
        results = [
            {**result, "job": job.trial.number, "overrides": job.request.overrides} for job, result in ordered
        ]
        parent = self._parent
        if parent is None:
            return 0
        self._plain.jobs(results, parent.record.run_id)
        failed = sum(result["status"] == FAILED for result in results) - self._study(parent)
        parent.close(status or (FAILED if failed else FINISHED), INTERRUPTED_SECONDS if status else None)
        return 1 if failed else 0

    def _study(self, parent: Parent) -> int:
        """Report a study, if this is one; returns how many of its jobs failed because they diverged: that is a result."""
        studied = [(job.experiment, result) for job, result in self.results.values() if job.experiment.study]
        if not studied:
            return 0
        from runner.report import study_page

        return study_page.report(studied, self.folder / "study", parent.record, self._plain)


def _all(source: Source) -> list[Trial]:
    """What is known from the start: of a grid all of it, of a search nothing."""
    return list(iter(source.next, None)) if isinstance(source, Listed) else []


def _validation(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key.startswith("val/")}
