"""A sweep's own run: new, or that of the same command before, with the jobs that it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from runner.errors import first_line
from runner.recording import finish_delivery
from runner.run_folder import Result, begin_sweep, end_sweep, locked
from runner.schema import Backend, Experiment
from runner.sweep.job import CACHED, JOB, OVERRIDES, STATUS, SweepJob, status_of, value_of
from runner.sweep.source import FAILED, KILLED, Trial
from runner.tracking import NullRecord, RunRecord, open_record, reopen_record, store_uri
from runner.tracking.found import Found, find, history

SWEEP, KIND = "runner.sweep", "multirun"
Say = Callable[[str], None]


@dataclass
class Store:
    """What earlier commands have left in the store; nothing where there is none, or sweep.cache=false."""

    uri: str | None
    parent: Found | None = None
    jobs: list[Found] = field(default_factory=list)  # of the parent
    _by_basis: dict[str, list[Found]] = field(default_factory=dict)

    @classmethod
    def open(cls, experiment: Experiment, outputs: Path, sweep: str, say: Say) -> Store:
        """`sweep`: what the command is known by."""
        uri = store_uri(experiment.tracking, outputs) if experiment.sweep.cache else None
        if uri is None:
            return cls(None)
        try:
            found = find(uri, {SWEEP: sweep})
            parent = found[0] if found else None
            return cls(uri, parent, find(uri, {"mlflow.parentRunId": parent.run_id}) if parent else [])
        except Exception as error:  # noqa: BLE001 (MLflow's clients raise many types; the store's check has told of it)
            say(f"what was done before is not known: the store does not answer ({first_line(error)})")
            return cls(None)

    def runs(self, basis: str) -> list[Found]:
        """All runs with this data and code, newest first."""
        if self.uri is None:
            return []
        if basis not in self._by_basis:
            self._by_basis[basis] = find(self.uri, {"runner.basis": basis})
        return self._by_basis[basis]

    def trials(self, monitor: str, with_values: bool, retry_failed: bool) -> list[Trial]:
        """The jobs of the parent, the newest run of each number; one that is to be taken up again has no status. `with_values` asks
        for every validation of each."""
        newest: dict[int, Trial] = {}
        again = (KILLED, FAILED) if retry_failed else (KILLED,)
        for run in self.jobs:
            if JOB not in run.tags or int(run.tags[JOB]) in newest:
                continue
            source = run.tags.get(CACHED, run.run_id)
            values = history(str(self.uri), source, monitor) if with_values else {}
            newest[int(run.tags[JOB])] = Trial(
                int(run.tags[JOB]),
                tuple(json.loads(run.tags.get(OVERRIDES, "[]"))),
                None if status_of(run) in again else status_of(run),
                value_of(run.metrics.get(f"best/{monitor}"), run.tags.get("runner.error")),
                values,
            )
        return sorted(newest.values(), key=lambda trial: trial.number)


@dataclass
class Parent:
    """Its folder is locked until it is closed."""

    folder: Path
    record: RunRecord
    say: Say
    _outputs: Path
    _open: ExitStack

    @classmethod
    def open(
        cls, experiment: Experiment, outputs: Path, folder: Path, store: Store, sweep: str, say: Say
    ) -> Parent:
        """Raises ConfigError where the same sweep is running, RunnerError where MLflow cannot be used."""
        tracking = experiment.tracking
        with ExitStack() as opening:
            if tracking.backend is Backend.none:
                return cls(folder, NullRecord(), say, outputs, opening.pop_all())
            opening.enter_context(locked(folder, seconds=2.0))  # or its spool would seem left over
            if store.parent is not None:
                record = reopen_record(tracking, outputs, folder, store.parent.run_id, say)
            else:
                record = open_record(tracking, outputs, folder, f"multirun {folder.name}", None, say)
            begin_sweep(folder, record.run_id, str(record.uri))
            record.set_tags(
                {
                    "runner.kind": KIND,
                    "runner.run_dir": str(folder),
                    "runner.monitor": experiment.checkpoint.monitor,
                    "runner.mode": experiment.checkpoint.mode.value,
                    SWEEP: sweep,
                }
            )
            return cls(folder, record, say, outputs, opening.pop_all())

    @property
    def run_id(self) -> str | None:
        """What its jobs are children of; the folder while the store does not answer."""
        return self.record.run_id or (str(self.folder) if self.record.uri else None)

    def earlier(self, job: SweepJob) -> Result:
        """What a job came to that is not run again; where it was one of another sweep, a child run of this one shows it."""
        run = job.earlier
        assert run is not None
        if run.tags.get("mlflow.parentRunId") != self.record.run_id:
            self._adopt(job, run)
        shown = run.metrics.items()
        best = {key.removeprefix("best/"): value for key, value in shown if key.startswith("best/")}
        result: Result = {
            "run_id": run.run_id,
            "status": status_of(run),
            "best": best,
            "metrics": run.metrics,
            "seconds": {"total": run.metrics.get("seconds/total")},
            "cached": run.run_id,
        }
        return {**result, "error": run.tags["runner.error"]} if "runner.error" in run.tags else result

    def _adopt(self, job: SweepJob, run: Found) -> None:
        number, tracking = job.trial.number, job.experiment.tracking
        name, folder = f"{self.folder.name}-{number}", self.folder / str(number)
        record = open_record(tracking, self._outputs, folder, name, self.run_id)
        kept = {
            key: value for key, value in run.tags.items() if key in (STATUS, "runner.error", "runner.run_dir")
        }
        record.set_tags({**job.request.tags, **kept, CACHED: run.run_id})
        shown = ("best/", "seconds/total", "epoch")
        record.log_metrics({key: value for key, value in run.metrics.items() if key.startswith(shown)})
        record.finish(run.status)
        record.close()

    def close(self, status: str, at_most: float | None) -> None:
        self.record.finish(status)
        finish_delivery(self.record, self.folder, self.say, at_most)
        end_sweep(self.folder)
        self._open.close()


def folder_of(store: Store, folder: Path) -> Path:
    """Where a sweep goes on that was begun before, else `folder`."""
    if store.parent is None:
        return folder
    known = Path(store.parent.tags.get("runner.run_dir", ""))
    return known if known.is_dir() else folder
