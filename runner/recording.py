"""The run's record on the driver: opened and described before the launch, ended with its true status after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner import config, provenance
from runner.errors import RunnerError
from runner.plan import Plan
from runner.prepare import Request
from runner.report.console import error_line, relative
from runner.run_folder import RESULT, RunFile, locked, lost, now, read_result, write_result
from runner.secrets import unmasked
from runner.tracking import RunRecord, open_record, reopen_record
from runner.tracking.earlier import lost_run

INTERRUPTED_SECONDS = 3.0
DRIVER_LOST = "driver lost: its process was killed"


def open_run(request: Request, plan: Plan, say: Callable[[str], None]) -> RunRecord:
    """Create the MLflow run and write down everything that is known before it starts; `say` gets a line a lost run."""
    tracking, earlier = request.experiment.tracking, request.resumes
    if earlier is not None:
        record = reopen_record(tracking, request.outputs, earlier.run_id)
        (request.run_dir / RESULT).unlink(missing_ok=True)
    else:
        name = tracking.run_name or request.run_dir.name
        record = open_record(tracking, request.outputs, name, request.parent_run_id)
    try:
        run_file(record, request).write(request.run_dir)
        describe_run(record, request, plan)
        end_lost_runs(request.outputs, say)
    except BaseException:
        record.finish("FAILED")
        raise
    return record


def run_file(record: RunRecord, request: Request) -> RunFile:
    """All it takes to launch the run again."""
    return RunFile(
        run_id=record.run_id,
        tracking_uri=record.uri,
        fingerprint=request.fingerprint,
        config=request.yaml,
        overrides=list(request.overrides),
        working_dir=str(Path.cwd()),
        import_roots=list(request.import_roots),
        created=now(),
    )


def end_lost_runs(outputs: Path, say: Callable[[str], None]) -> None:
    """Runs whose driver was killed say RUNNING until the next start: this one."""
    for run_dir in lost(outputs):
        # Not this run's concern: where it cannot be done, the next start tries again.
        with suppress(RunnerError), locked(run_dir, seconds=0):
            if read_result(run_dir) is None:  # nobody took it up in between
                end_lost_run(run_dir)
                say(f"{relative(run_dir)}: {DRIVER_LOST}, FAILED now; {how_to_go_on(None, run_dir)}")


def end_lost_run(run_dir: Path) -> None:
    """FAILED, in its folder and in MLflow. Raises RunnerError where the store does not answer."""
    run = RunFile.read(run_dir)
    run_id, uri = run.run_id, run.tracking_uri and unmasked(run.tracking_uri)
    if run_id is not None and uri is not None:
        problem = bounded(lambda: lost_run(uri, run_id, DRIVER_LOST))
        if problem:
            raise RunnerError(problem)
    write_result(run_dir, {"run_id": run_id, "status": "FAILED", "error": DRIVER_LOST})


def how_to_go_on(run_id: str | None, run_dir: Path) -> str:
    which = f"run_id={run_id}" if run_id else f"run_dir={relative(run_dir)}"
    return f"go on with: python -m runner resume {which}"


def describe_run(record: RunRecord, request: Request, plan: Plan) -> None:
    """Parameters, config, code version, environment and plan."""
    commit, diff = provenance.git_state(Path.cwd())
    tags = {
        "mlflow.source.name": "python -m runner",
        "runner.run_dir": str(request.run_dir),
        "runner.fingerprint": request.fingerprint,
    }
    record.set_tags({**tags, "mlflow.source.git.commit": commit} if commit else tags)
    if (
        request.resumes is None
    ):  # MLflow's parameters never change; config.yaml and plan.txt are those of today
        record.log_params({**dict(config.flatten(request.values)), **plan.flat()})
    record.log_text(request.yaml, "config.yaml")
    record.log_text("\n".join(request.overrides) + "\n", "overrides.txt")
    record.log_text("\n".join(plan.lines()) + "\n", "plan.txt")
    record.log_text(provenance.environment(), "environment.json")
    if diff:
        record.log_text(diff, "git.diff")


def close_record(record: RunRecord, run_dir: Path, status: str, error: str | None) -> None:
    """Logs, result and final status; what cannot be stored is said and does not hide how the training ended."""

    def store() -> None:
        record.finish(status, error)
        for name in ("logs", "plots", "profile"):
            record.log_artifact(run_dir / name)
        record.log_artifact(run_dir / "result.json")

    problem = bounded(store) if status == "KILLED" else _attempt(store)
    if problem:
        error_line(
            f"tracking.uri={record.uri}: run {record.run_id} is {status}, but MLflow did not take it: {problem}"
        )


def bounded(action: Callable[[], Any], seconds: float = INTERRUPTED_SECONDS) -> str | None:
    """Do `action` for at most `seconds` (an interrupted user waits); the first line of what went wrong, if anything."""
    outcome: list[str | None] = ["no answer"]

    def attempt() -> None:
        outcome[0] = _attempt(action)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


def _attempt(action: Callable[[], Any]) -> str | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 (MLflow's clients raise many types)
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None
