"""A sweep: the jobs of one command on warm sessions, each a child of one MLflow run; what was done before is not done again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from runner import interrupts, prepare, secrets
from runner.dry_run import dry_run
from runner.errors import RunnerError
from runner.executors import ray_cluster
from runner.identity import is_immaterial
from runner.known import Known
from runner.recording import INTERRUPTED_SECONDS, look_back
from runner.report.console import Screen
from runner.report.sweep_screen import SweepScreen
from runner.request import Request
from runner.saving import FINAL
from runner.schema import Experiment
from runner.sweep import job as jobs
from runner.sweep import population
from runner.sweep.best import preload
from runner.sweep.execution import Execution
from runner.sweep.job import Action, Compose, SweepJob
from runner.sweep.members import Members
from runner.sweep.parent import Parent, Store, folder_of
from runner.sweep.pool import Pool
from runner.sweep.population import Population
from runner.sweep.source import FAILED, FINISHED, KILLED, Source, Trial
from runner.sweep_schema import Isolation, Method

OpenSource = Callable[[Experiment, Sequence[Trial]], Source]
Values = dict[int, float | None]  # the best of checkpoint.monitor by job


class Sweep:
    """One command. `folder` is where a new one goes; `first` are the overrides of a job that stands for all, `common` those
    that all have; `yaml` is what Hydra made of the command, without secrets."""

    def __init__(
        self,
        compose: Compose,
        roots: tuple[str, ...],
        folder: Path,
        screen: Screen,
        first: Sequence[str],
        common: Sequence[str],
        yaml: str,
    ) -> None:
        self._compose, self._roots, self._screen, self._folder = compose, roots, screen, folder
        self._common, self._yaml = common, yaml
        self._outputs, self._known = Path.cwd() / "outputs", Known()
        # The same wherever the sweep is: it is known by what this one says.
        anywhere, self._first_trial = self._outputs / "multiruns" / "…", Trial(0, tuple(first))
        self._first_request = jobs.request_of(compose, self._first_trial, roots, anywhere)
        self._settings = self._first_request.experiment
        self._checked_first: dict[int, tuple[Request, prepare.Prepared]] = {}  # of a grid, by number

    def run(self, typed: Sequence[str], open_source: OpenSource) -> tuple[int, Values]:
        """Run what the command, `typed`, means; returns the exit code. Raises RunnerError where nothing was started."""
        settings = self._settings
        is_listed = settings.search.method in (Method.grid, Method.pbt)
        source = open_source(settings, ()) if is_listed else None
        trials = list(iter(source.next, None)) if source is not None else []
        self._check(trials)
        look_back(self._outputs, self._screen.line)  # before the store is asked what was done
        self._first = jobs.identified(self._first_trial, self._first_request, self._known)
        self._command = self._name(typed)
        self._store = Store.open(settings, self._outputs, self._command, self._screen.line)
        self._folder = folder_of(self._store, self._folder)
        with_values = settings.search.method is Method.asha
        earlier: Sequence[Trial] = ()
        if source is None:
            earlier = self._store.trials(self._first.monitor, with_values, settings.sweep.retry_failed)
            source = open_source(settings, earlier)
        known = [self._compared(trial) for trial in trials]
        if isinstance(source, Members):
            known = population.whole(known, self._screen.line)
        elif settings.sweep.cache:
            known = jobs.once(known, self._screen.line)
        if settings.sweep.dry_run or settings.dry_run:
            self._rehearse_all(known, earlier, source)
            return 0, {}
        known = [self._checked(job) for job in known]
        example = next((job.prepared for job in known if job.prepared), None)
        example = example or jobs.check(jobs.aside(self._first), self._known).prepared
        assert example is not None
        common = set(secrets.masked(tuple(self._common)))
        done = sum(trial.status is not None for trial in earlier)
        screen = SweepScreen(self._screen, source.total - done - (len(trials) - len(known)))
        if done:
            self._screen.line(f"{done} of {source.total} trials are done")
        pool, parent = self._start(known, example, source, done < source.total)
        execution = Execution(
            settings, source, known, self._next, self._known, parent, pool, example, common, screen
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "multirun.yaml").write_text(self._yaml)
        screen.start()
        status = None
        try:
            execution.run()
        except BaseException as error:
            status = FAILED
            if isinstance(error, KeyboardInterrupt):
                interrupts.ending()
                status = KILLED
            execution.stop()
            raise
        finally:
            screen.stop()
            if pool is not None and status is None:
                pool.close()
            code = self._finish(execution, parent, status)
        return code, {number: job.told(result).value for number, (job, result) in execution.results.items()}

    def _rehearse_all(self, known: Sequence[SweepJob], earlier: Sequence[Trial], source: Source) -> None:
        """Of a search also the trials that it had, and as many of the next as can be known by now."""
        for trial in earlier:
            if trial.status is not None:
                overrides = " ".join(secrets.masked(trial.overrides))
                self._screen.line(f"job {trial.number}  {overrides}  {trial.status}")
        is_tpe = self._settings.search.method is Method.tpe
        coming = islice(iter(source.next, None), 1 if is_tpe else None)
        for job in (*known, *map(self._compared, coming)):
            self._rehearse(jobs.check(job, self._known))
        if is_tpe:
            self._screen.line("what comes after it depends on how it ends")

    def _rehearse(self, job: SweepJob) -> None:
        """sweep.dry_run=true: what is to be done; dry_run=true: a step of it, too."""
        self._screen.line(jobs.line(job))
        if self._settings.dry_run:
            assert job.prepared is not None
            data = self._known.data(job.experiment)
            dry_run(replace(job.prepared, data=data), self._screen)

    def _name(self, typed: Sequence[str]) -> str:
        """What the same sweep is known by when it is started again, with the same code and data; it may have become longer."""
        material = [
            each
            for each in typed
            if not each.startswith(("hydra.", "search.trials="))
            and not (is_immaterial(each) and "search" not in each)
        ]
        return jobs.sha256(repr((self._first.identity, material)))

    def _check(self, trials: Sequence[Trial]) -> None:
        """All jobs of a grid, before anything is started or asked: first their configs, then what they need
        of the machine, then what else can be known."""
        requests = [jobs.request_of(self._compose, trial, self._roots, self._folder) for trial in trials]
        jobs.check_folders(requests)
        for trial, request in zip(trials, requests, strict=True):
            jobs.check_resources(trial, request, self._known)
        for trial, request in zip(trials, requests, strict=True):
            # Started again, the sweep has its folders; what is to be done with each is not known yet.
            checked = jobs.prepared_of(trial, jobs.beside(trial, request), self._known)
            self._checked_first[trial.number] = request, checked

    def _compared(self, trial: Trial) -> SweepJob:
        """With what earlier commands have left of it."""
        request, _ = self._checked_first.get(trial.number, (None, None))
        if request is None or not request.run_dir.is_relative_to(
            self._folder
        ):  # the sweep goes on in another folder
            request = jobs.request_of(self._compose, trial, self._roots, self._folder)
        job = jobs.identified(trial, request, self._known)
        if self._settings.search.method is Method.pbt:
            job = population.member_of(job, self._command)
        mine = {run.run_id for run in self._store.jobs}
        return jobs.compared(job, self._store.runs(job.basis), mine, self._settings.sweep.retry_failed)

    def _checked(self, job: SweepJob) -> SweepJob:
        if job.action is Action.RUN and job.trial.number in self._checked_first:
            return replace(job, prepared=self._checked_first[job.trial.number][1])
        return jobs.check(job, self._known) if job.action in (Action.RUN, Action.RESUME) else job

    def _next(self, trial: Trial) -> SweepJob:
        """Of a search, which goes on without a trial that is no job."""
        try:
            return self._checked(self._compared(trial))
        except RunnerError as error:
            return jobs.refused(trial, self._first_request, self._folder, error)

    def _start(
        self, known: Sequence[SweepJob], example: prepare.Prepared, source: Source, is_to_train: bool
    ) -> tuple[Pool | Population | None, Parent]:
        """Ray with the sessions of the first jobs, and the parent run, side by side."""
        sweep = self._settings.sweep
        pool: Pool | Population | None = None
        with ThreadPoolExecutor(1) as background:
            opening = background.submit(
                Parent.open,
                self._settings,
                self._outputs,
                self._folder,
                self._store,
                self._command,
                self._screen.line,
            )
            prepared = [job for job in known if job.prepared is not None]
            if prepared or (not known and is_to_train):
                threading.Thread(target=preload, args=(self._settings.tracking,), daemon=True).start()
                if example.address is None:
                    ray_cluster.start(None, example.machine.cpus, self._roots, self._settings.verbose)
                if isinstance(source, Members):
                    pool = Population(self._settings, source, self._folder / "ray")
                    return pool, opening.result()
                is_shared = sweep.isolation is Isolation.session
                pool = Pool(example.machine, self._folder / "ray", sweep.max_concurrent, is_shared)
                plans = [job.prepared for job in prepared if job.prepared] or [example]
                fit = min((plan.together for plan in plans if plan.together), default=None)
                if fit is not None and fit < pool.room(example.plan.resources):
                    pool.at_most = fit
                    self._screen.line(f"memory: {fit} at a time; skip_checks=[memory] takes all CPUs")
                for job in prepared:
                    assert job.prepared is not None
                    pool.prestart(job.experiment, job.prepared.plan.resources)
            return pool, opening.result()

    def _complete(self, execution: Execution, parent: Parent) -> None:
        best = execution.best
        if best.number is not None:
            job, result = execution.results[best.number]
            try:
                best.complete(
                    job.folder, result["run_id"], parent.record.uri, partial(self._prepared, job), self._known
                )
            except Exception as error:  # noqa: BLE001 (a user's model; worth a line, not a sweep)
                self._screen.line(f"the best model could not be stored: {type(error).__name__}: {error}")
        for job, _ in execution.results.values():
            (job.request.run_dir / FINAL).unlink(missing_ok=True)

    def _prepared(self, job: SweepJob) -> prepare.Prepared:
        prepared = job.prepared or jobs.check(job, self._known).prepared
        assert prepared is not None
        return prepared

    def _finish(self, execution: Execution, parent: Parent, status: str | None) -> int:
        """The leaderboard, the plots of the best job, the parent's status; returns the exit code: 1 if a job failed."""
        from runner.report import leaderboard, leaderboard_files, leaderboard_table

        ordered = [execution.results[number] for number in sorted(execution.results)]
        monitor, mode = self._first.monitor, self._settings.checkpoint.mode
        rows = [
            leaderboard.row_of(job.trial.number, job.request.overrides, result, job.request.run_dir, monitor)
            for job, result in ordered
        ]
        before = leaderboard.rows_of(self._store.jobs, monitor)
        rows += [row for row in before if row.number not in execution.results]
        found = leaderboard.board(f"multirun {self._folder.name}", parent.record.run_id, monitor, mode, rows)
        if status is None:
            self._complete(execution, parent)
            leaderboard_files.report(found, self._folder / "leaderboard", parent.record, self._screen)
        else:
            leaderboard_table.show(found, self._screen)
            if status == KILLED and parent.record.uri is not None:
                self._screen.line("go on with: the same command again")
        failed = sum(row.status == FAILED for row in rows)
        if studied := [(job.experiment, result) for job, result in ordered if job.experiment.study]:
            from runner.report import study_page

            # Jobs that diverged are a result of a study.
            failed -= study_page.report(studied, self._folder / "study", parent.record, self._screen)
        parent.close(status or (FAILED if failed else FINISHED), INTERRUPTED_SECONDS if status else None)
        return 1 if failed else 0
