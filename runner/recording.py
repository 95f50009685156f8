"""The run's record on the driver: opened and described before the launch, ended with its true status after it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import config, provenance
from runner.plan import Plan
from runner.prepare import Request
from runner.report.console import error_line
from runner.tracking import RunRecord, open_record

INTERRUPTED_SECONDS = 3.0
Result = dict[str, Any]  # what result.json holds


def open_run(request: Request, plan: Plan) -> RunRecord:
    """Create the MLflow run and write down everything that is known before it starts."""
    tracking = request.experiment.tracking
    record = open_record(
        tracking, request.outputs, tracking.run_name or request.run_dir.name, request.parent_run_id
    )
    try:
        describe_run(record, request, plan)
    except BaseException:
        record.finish("FAILED")
        raise
    return record


def describe_run(record: RunRecord, request: Request, plan: Plan) -> None:
    """Parameters, config, code version, environment and plan."""
    commit, diff = provenance.git_state(Path.cwd())
    tags = {"mlflow.source.name": "python -m runner", "runner.run_dir": str(request.run_dir)}
    record.set_tags({**tags, "mlflow.source.git.commit": commit} if commit else tags)
    record.log_params({**dict(config.flatten(request.values)), **plan.flat()})
    record.log_text(request.yaml, "config.yaml")
    record.log_text("\n".join(request.overrides) + "\n", "overrides.txt")
    record.log_text("\n".join(plan.lines()) + "\n", "plan.txt")
    record.log_text(provenance.environment(), "environment.json")
    if diff:
        record.log_text(diff, "git.diff")


def close_record(record: RunRecord, run_dir: Path, status: str) -> None:
    """Logs, result and final status; what cannot be stored is said and does not hide how the training ended."""

    def store() -> None:
        record.finish(status)
        for name in ("logs", "plots", "profile"):
            record.log_artifact(run_dir / name)
        record.log_artifact(run_dir / "result.json")

    problem = bounded(store) if status == "KILLED" else _attempt(store)
    if problem:
        error_line(
            f"tracking.uri={record.uri}: run {record.run_id} is {status}, but MLflow did not take it: {problem}"
        )


def bounded(action: Callable[[], None], seconds: float = INTERRUPTED_SECONDS) -> str | None:
    """Do `action` for at most `seconds` (an interrupted user waits); the first line of what went wrong, if anything."""
    outcome: list[str | None] = ["no answer"]

    def attempt() -> None:
        outcome[0] = _attempt(action)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


def _attempt(action: Callable[[], None]) -> str | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 (MLflow's clients raise many types)
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None


def write_result(run_dir: Path, result: Result) -> None:
    """result.json, whole or not at all."""
    run_dir.mkdir(parents=True, exist_ok=True)
    temporary = run_dir / ".result.json"
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(run_dir / "result.json")
