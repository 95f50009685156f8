"""The jobs of a sweep as rows, best first. Pure, but for a look at which logs are there."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.rank_log import log_path
from runner.schema import Mode
from runner.secrets import masked
from runner.tracking.found import Found
from runner.tracking.mlflow import clean

BEST = "best/"  # metrics: the monitored one at its best, and others of that epoch
LOST = ("FAILED", "KILLED")
OF_THE_SWEEP = ("search=", "search.", "sweep=", "sweep.")  # overrides
REMOVED = "(removed)"  # by an override ~key
LARGEST = 1e300  # MLflow's SQL stores keep infinity as the largest number they have


@dataclass(frozen=True)
class Row:
    """One job, as far as it has come."""

    number: int
    asked: tuple[str, ...] = ()  # its overrides, as a command line would have them
    status: str = "RUNNING"  # FINISHED, PRUNED, FAILED, KILLED or RUNNING
    value: float | None = None  # best of the monitored metric; None where nothing finite was measured
    metrics: Mapping[str, float] = field(default_factory=dict)  # others at that epoch, by name
    epochs: float | None = None  # trained
    seconds: float | None = None
    run_id: str | None = None
    reason: str | None = None  # why it failed, or when it was pruned
    log: str | None = None  # of the rank that failed
    cached: str | None = None  # run id of the earlier run whose result this is

    @cached_property
    def overrides(self) -> dict[str, str]:
        """Value by key, both as text; a group's option by the group's name."""
        return dict(map(_override, self.asked))

    @property
    def is_lost(self) -> bool:
        return self.status in LOST

    @property
    def outcome(self) -> str:
        """Its status in words."""
        if self.status == "PRUNED" and self.reason:
            return f"PRUNED {self.reason}"
        return f"{self.status} (cached)" if self.cached else self.status


@dataclass(frozen=True)
class Board:
    """A sweep's jobs in order: the best first, then those without a value, then the failed ones by their numbers."""

    title: str
    run_id: str | None  # of the sweep
    monitor: str
    mode: Mode
    rows: tuple[Row, ...]

    @cached_property
    def ranked(self) -> list[Row]:
        """The rows that have a place: those that did not fail and measured something, best first."""
        return [row for row in self.rows if row.value is not None and not row.is_lost]

    @cached_property
    def lost(self) -> list[Row]:
        return [row for row in self.rows if row.is_lost]

    @cached_property
    def keys(self) -> list[str]:
        """Of all overrides."""
        return list(dict.fromkeys(key for row in _by_number(self.rows) for key in row.overrides))

    @cached_property
    def columns(self) -> list[str]:
        """The overrides that are not the same in all jobs."""
        overrides = [row.overrides for row in self.rows]
        return [key for key in self.keys if len({each.get(key) for each in overrides}) > 1]

    @cached_property
    def others(self) -> list[str]:
        """Names of the metrics besides the monitored one."""
        return list(dict.fromkeys(name for row in _by_number(self.rows) for name in row.metrics))

    @property
    def direction(self) -> str:
        return "higher is better" if self.mode is Mode.max else "lower is better"

    @property
    def counts(self) -> str:
        """16 jobs: 13 finished, 2 pruned, 1 failed"""
        found = Counter(row.status for row in self.rows)
        known = [status for status in ("FINISHED", "PRUNED", "RUNNING", "FAILED", "KILLED") if found[status]]
        jobs = "1 job" if len(self.rows) == 1 else f"{len(self.rows)} jobs"
        return f"{jobs}: {', '.join(f'{found[status]} {status.lower()}' for status in known)}"


def board(title: str, run_id: str | None, monitor: str, mode: Mode, rows: Iterable[Row]) -> Board:
    """The rows in order, without secrets: from here on nothing needs to be masked."""
    sign = 1 if mode is Mode.min else -1

    def place(row: Row) -> tuple[float, ...]:
        if row.is_lost:
            return 2, row.number
        return (1, row.number) if row.value is None else (0, sign * row.value, row.number)

    return masked(Board(title, run_id, monitor, mode, tuple(sorted(rows, key=place))))


def _of_the_job(overrides: Sequence[str]) -> tuple[str, ...]:
    """Without what is said of the sweep, which may differ from one of its commands to the next."""
    return tuple(each for each in overrides if not each.lstrip("+~").startswith(OF_THE_SWEEP))


def rows_of(children: Sequence[Found], monitor: str) -> list[Row]:
    """Of a sweep's child runs, newest first: where a job was trained again, its newest run stands for it."""
    jobs: dict[int, Row] = {}
    for child in children:
        if child.tags.get("runner.job", "").isdecimal():
            jobs.setdefault(int(child.tags["runner.job"]), _of_run(child, monitor))
    return list(jobs.values())


def row_of(job: int, asked: Sequence[str], result: Mapping[str, Any], run_dir: Path, monitor: str) -> Row:
    """Of what a job's result.json says: the same row without a store."""
    best = result.get("best", {})
    metrics = {name: best[name] for name in best if name.startswith("val/") or name == monitor}
    reason = result.get("error") or result.get("pruned")
    return Row(
        number=job,
        asked=_of_the_job(asked),
        status=result["status"],
        value=_finite(metrics.pop(monitor, None)),
        metrics=metrics,
        epochs=result.get("metrics", {}).get("epoch"),
        seconds=result.get("seconds", {}).get("total"),
        run_id=result.get("run_id"),
        reason=reason,
        log=_log(run_dir, reason) if result["status"] in LOST else None,
        cached=result.get("cached"),
    )


def _of_run(child: Found, monitor: str) -> Row:
    tags = child.tags
    best = {
        name.removeprefix(BEST): value
        for name, value in child.metrics.items()
        if name.startswith(BEST) and name != f"{BEST}epoch"
    }
    status = tags.get("runner.status", child.status)
    reason = tags.get("runner.error") or tags.get("runner.pruned")
    return Row(
        number=int(tags["runner.job"]),
        asked=_of_the_job(_texts(tags.get("runner.overrides", "[]"))),
        status=status,
        value=_finite(best.pop(clean(monitor), None)),
        metrics=best,
        epochs=child.metrics.get("epoch"),
        seconds=child.metrics.get("seconds/total"),
        run_id=child.run_id,
        reason=reason,
        log=_log(Path(tags.get("runner.run_dir", "")), reason) if status in LOST else None,
        cached=tags.get("runner.cached"),
    )


def _texts(written: str) -> tuple[str, ...]:
    """A JSON list of texts; () of what is none, such as a tag that the store has cut."""
    try:
        found = json.loads(written)
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _override(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.lstrip("+~"), REMOVED if key.startswith("~") else value


def _log(run_dir: Path, reason: str | None) -> str | None:
    """Of the rank that the reason names, else of rank 0; None where a job has none, or its folder is elsewhere."""
    named = re.match(r"rank (\d+)", reason or "")
    ranks = [int(named[1])] if named else []
    logs = [log_path(run_dir, rank) for rank in (*ranks, 0)]
    return next((str(log) for log in logs if log.is_file()), None)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) < LARGEST else None


def _by_number(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row.number)
