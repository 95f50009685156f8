"""A multirun: job after job in one Ray, each a child run; a failed job is listed and the rest run."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.report.console import Screen, error_line
from runner.schema import Tracking
from runner.tracking import NullRecord, RunRecord, open_record


@dataclass
class Grid:
    """The jobs of one multirun under one parent run, opened with the first job's tracking settings."""

    outputs: Path
    name: str
    screen: Screen
    results: list[dict[str, Any]] = field(default_factory=list)
    _parent: RunRecord | None = None

    def parent_run_id(self, tracking: Tracking) -> str | None:
        if self._parent is None:
            self._parent = open_record(tracking, self.outputs, self.name)
            self._parent.set_tags({"runner.kind": "multirun"})
        return self._parent.run_id

    def run(self, overrides: tuple[str, ...], job: Callable[[], dict[str, Any]]) -> None:
        """Run one job; an error is kept and shown, not raised."""
        number = len(self.results)
        self.screen.line(f"job {number}: {' '.join(overrides)}")
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 (the other jobs run on)
            if not isinstance(error, RunnerError):
                traceback.print_exc()
            error_line(error)
            result = {"status": "FAILED", "error": str(error)}
        self.results.append({**result, "job": number, "overrides": overrides})

    def finish(self, status: str | None = None) -> int:
        """Show the table, end the parent run and return the exit code: 1 if a job failed."""
        failed = any(result["status"] == "FAILED" for result in self.results)
        parent = self._parent or NullRecord()
        self.screen.jobs(self.results, parent.run_id)
        parent.finish(status or ("FAILED" if failed else "FINISHED"))
        return 1 if failed else 0
