"""`python -m runner leaderboard [sweep]`: the jobs of a sweep, best first, as they are in MLflow now.

The sweep is the id of its MLflow run or its folder; without one, the newest of the store. The table is printed, and a page,
a CSV and plots are written to the sweep's folder. Exit code 1 where one of them could not be.
"""

from __future__ import annotations

import re
from pathlib import Path

from runner.errors import ConfigError, refuse
from runner.report import leaderboard_files
from runner.report.console import Screen
from runner.report.leaderboard import Board, board, rows_of
from runner.report.leaderboard_table import show
from runner.schema import Mode, Tracking
from runner.tracking import store_uri
from runner.tracking.found import Found, find, stored
from runner.tracking.store import check_uri, first_line

USAGE = "python -m runner leaderboard [sweep=<MLflow run or folder of a multirun>] [tracking.uri=…]"
SWEEP = {"runner.kind": "multirun"}


def leaderboard(arguments: list[str], screen: Screen) -> int:
    """Returns the exit code. Raises ConfigError where there is no such sweep, PreflightError where the store is away."""
    given = dict(map(argument_of, arguments))
    outputs = Path.cwd() / "outputs"
    uri = store_uri(Tracking(uri=given.get("tracking.uri")), outputs)
    assert uri is not None  # tracking is on
    check_uri(uri)
    try:
        sweep = sweep_of(uri, given.get("sweep"))
        found = board_of(uri, sweep)
    except ConfigError:
        raise
    except Exception as error:  # MLflow's clients raise many types
        raise ConfigError(f"tracking.uri={uri}: the store cannot be read ({first_line(error)})") from error
    folder = Path(sweep.tags.get("runner.run_dir", "gone"))
    beside = folder / "leaderboard" if folder.is_dir() else outputs / "leaderboards" / sweep.run_id
    show(found, screen)
    return 0 if leaderboard_files.write(found, beside, screen) else 1


def argument_of(argument: str) -> tuple[str, str]:
    """(key, value); what has no `=` is the sweep. Raises ConfigError."""
    key, has_value, value = argument.partition("=")
    if not has_value:
        return "sweep", argument
    if key not in ("sweep", "tracking.uri"):
        raise ConfigError(f"leaderboard: {argument} is no argument of it; type {USAGE}")
    return key, value


def sweep_of(uri: str, named: str | None) -> Found:
    """The sweep's own run. Raises ConfigError."""
    if named is None:
        sweeps = [run for run in find(uri, SWEEP) if "runner.monitor" in run.tags]
        if not sweeps:
            raise ConfigError(
                f"leaderboard: {uri} has no sweep; type python -m runner --multirun key=value,value, or {USAGE}"
            )
        return sweeps[0]
    if re.fullmatch(r"[0-9a-f]{32}", named):
        run = stored(uri, named)
        if run is None:
            raise refuse("sweep", named, f"{uri} has no such run", "tracking.uri=… of the store that has it")
    else:
        runs = find(uri, {**SWEEP, "runner.run_dir": str(Path(named).absolute())})
        if not runs:
            allowed = f"neither the MLflow run of a sweep nor the folder of one that {uri} has"
            raise refuse("sweep", named, allowed, USAGE)
        run = runs[0]
    if "mlflow.parentRunId" in run.tags and run.tags.get("runner.kind") != SWEEP["runner.kind"]:
        raise refuse("sweep", named, "a job, not a sweep", f"sweep={run.tags['mlflow.parentRunId']}")
    if "runner.monitor" not in run.tags:
        raise refuse("sweep", named, "no sweep: its run does not say by which metric jobs are ranked", USAGE)
    return run


def board_of(uri: str, sweep: Found) -> Board:
    monitor, mode = sweep.tags["runner.monitor"], sweep.tags.get("runner.mode", "min")
    rows = rows_of(find(uri, {"mlflow.parentRunId": sweep.run_id}), monitor)
    if not rows:
        raise refuse(
            "sweep",
            sweep.run_id,
            "none of its jobs is in MLflow yet",
            "python -m runner sync, then this again",
        )
    return board(sweep.name, sweep.run_id, monitor, Mode.max if mode == "max" else Mode.min, rows)
