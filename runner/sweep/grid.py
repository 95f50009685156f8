"""A multirun: job after job in one Ray, each a child run; a failed job is listed and the rest run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.recording import INTERRUPTED_SECONDS, finish_delivery
from runner.report.console import Screen, error_line
from runner.run_folder import locked
from runner.schema import Backend, Experiment
from runner.tracking import NullRecord, RunRecord, open_record


@dataclass
class Grid:
    """The jobs of one multirun under one parent run, opened with the first job's tracking settings.

    Where the jobs say `study`, those that ended are put together: files in `folder`/study, also on the parent run.
    """

    outputs: Path
    folder: Path
    screen: Screen
    results: list[dict[str, Any]] = field(default_factory=list)
    experiments: list[Experiment | None] = field(default_factory=list)  # of the results; None: not even one
    _experiment: Experiment | None = None  # of the job that runs
    _parent: RunRecord | None = None
    _open_now: ExitStack = field(default_factory=ExitStack)

    def parent_run_id(self, experiment: Experiment) -> str | None:
        """Called by each job, as soon as it knows what it is; the multirun's folder while the store does not answer."""
        self._experiment = experiment
        if self._parent is None:
            name, say = f"multirun {self.folder.name}", self.screen.line
            with ExitStack() as opening:
                if experiment.tracking.backend is not Backend.none:
                    opening.enter_context(locked(self.folder))  # or its spool would seem left over
                self._parent = open_record(experiment.tracking, self.outputs, self.folder, name, None, say)
                self._open_now = opening.pop_all()
            self._parent.set_tags({"runner.kind": "multirun"})
        return self._parent.run_id or (str(self.folder) if self._parent.uri else None)

    def run(self, overrides: tuple[str, ...], job: Callable[[], dict[str, Any]]) -> None:
        """Run one job; an error is kept and shown, not raised."""
        number = len(self.results)
        self.screen.line(f"job {number}: {' '.join(overrides)}")
        self._experiment = None
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 (the other jobs run on)
            if not isinstance(error, RunnerError):
                traceback.print_exc()
            error_line(error)
            result = {"status": "FAILED", "error": str(error)}
        self.results.append({**result, "job": number, "overrides": overrides})
        self.experiments.append(self._experiment)

    def finish(self, status: str | None = None) -> int:
        """Show the table, end the parent run and return the exit code: 1 if a job failed."""
        parent = self._parent or NullRecord()
        self.screen.jobs(self.results, parent.run_id)
        failed = sum(result["status"] == "FAILED" for result in self.results) - self._study(parent)
        parent.finish(status or ("FAILED" if failed else "FINISHED"))
        finish_delivery(parent, self.folder, self.screen.line, INTERRUPTED_SECONDS if status else None)
        self._open_now.close()
        return 1 if failed else 0

    def _study(self, parent: RunRecord) -> int:
        """Report a study, if this is one; returns how many of its jobs failed because they diverged: that is a result."""
        jobs = zip(self.experiments, self.results, strict=True)
        studied = [(experiment, result) for experiment, result in jobs if experiment and experiment.study]
        if not studied:
            return 0
        from runner.report import study_page

        return study_page.report(studied, self.folder / "study", parent, self.screen)
