"""The run's record on the driver: opened and described before the launch, ended with its true status after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from runner import config, provenance
from runner.errors import ConfigError, RunnerError, first_line
from runner.executors.launched import launched
from runner.plan import Plan
from runner.report.console import error_line, relative
from runner.request import Request
from runner.run_folder import (
    JOBS,
    MULTIRUNS,
    PROOFS,
    RANK_0_LOCK,
    RESULT,
    RUN,
    RUNS,
    RunFile,
    end_sweep,
    locked,
    lost,
    lost_sweeps,
    name_run,
    now,
    read_result,
    take,
    write_result,
)
from runner.secrets import unmasked
from runner.tracking import RunRecord, create_store, left_over, open_record, reopen_record

INTERRUPTED_SECONDS = 3.0
_git_state = cache(provenance.git_state)  # as it was when the command began
DRIVER_LOST = "driver lost: its process was killed"


def open_run(request: Request, plan: Plan, say: Callable[[str], None], stopped: threading.Event) -> RunRecord:
    """Create the MLflow run and write down everything that is known before it starts; `say` gets a line a lost run.

    Where `stopped` is set in time, no run is created: raises RunnerError.
    """
    tracking, earlier, run_dir = request.experiment.tracking, request.resumes, request.run_dir

    def created(run_id: str) -> None:
        if (run_dir / RUN).exists():  # so it was put off
            name_run(run_dir, run_id)
            say(f"MLflow answers: this is run {run_id}")

    if earlier is None:
        create_store(tracking, request.outputs)
    if stopped.is_set():
        raise RunnerError("the training was stopped before it had a run")
    if earlier is not None:
        record = reopen_record(tracking, request.outputs, run_dir, earlier.run_id, say, created)
        (run_dir / RESULT).unlink(missing_ok=True)
    else:
        name = tracking.run_name or run_dir.name
        record = open_record(tracking, request.outputs, run_dir, name, request.parent_run_id, say, created)
    try:
        run_file(record, request).write(run_dir)
        describe_run(record, request, plan)
    except BaseException:
        ended(record, "FAILED")
        raise
    return record


def look_back(outputs: Path, say: Callable[[str], None]) -> None:
    """Once a command: end what killed drivers have left, and deliver, in the background, what MLflow does not have."""
    end_lost_runs(outputs, say)
    end_lost_sweeps(outputs)
    threading.Thread(target=deliver_earlier, args=(outputs, say), name="earlier", daemon=True).start()


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


def end_lost_sweeps(outputs: Path) -> None:
    """The same of the runs that their jobs are children of."""
    for folder, run_id, uri in lost_sweeps(outputs):
        with suppress(RunnerError), locked(folder, seconds=0):
            left_over.end_lost_run(folder, unmasked(uri), run_id, DRIVER_LOST)
            left_over.deliver_left(folder, at_most=INTERRUPTED_SECONDS)
            end_sweep(folder)


def end_lost_run(run_dir: Path) -> None:
    """FAILED, in its folder and in MLflow, where that answers; else when it does (`deliver_earlier`)."""
    run = RunFile.read(run_dir)
    if run.tracking_uri is not None:
        left_over.end_lost_run(run_dir, unmasked(run.tracking_uri), run.run_id, DRIVER_LOST)
    write_result(run_dir, {"run_id": run.run_id, "status": "FAILED", "error": DRIVER_LOST})
    left_over.deliver_left(run_dir, partial(name_run, run_dir), INTERRUPTED_SECONDS)


def left(outputs: Path) -> list[Path]:
    """Folders with something that MLflow does not have yet, those of multiruns before their jobs'."""
    folders = (RUNS, MULTIRUNS, JOBS, PROOFS)
    return [
        found for folder in folders for found in sorted(outputs.glob(folder)) if left_over.has_left(found)
    ]


def deliver_earlier(outputs: Path, say: Callable[[str], None]) -> None:
    """What earlier runs have left, in the background, until a store does not answer; a line a run."""
    for folder in left(outputs):
        with suppress(RunnerError, OSError), take(folder, seconds=0):
            outcome = left_over.deliver_left(folder, partial(name_run, folder))
            if outcome.outage:
                return
            refused = f", but for what it refuses: {outcome.refused[0]}" if outcome.refused else ""
            say(f"{relative(folder)}: everything is in MLflow now{refused}")


def how_to_go_on(run_id: str | None, run_dir: Path) -> str:
    which = f"run_id={run_id}" if run_id else f"run_dir={relative(run_dir)}"
    launch = launched()
    launcher = f"horovodrun -np {launch.size} " if launch else ""
    return f"go on with: {launcher}python -m runner resume {which}"


def describe_run(record: RunRecord, request: Request, plan: Plan) -> None:
    """Parameters, config, code version, environment and plan."""
    commit, diff = _git_state(Path.cwd())
    tags = {
        "mlflow.source.name": "python -m runner",
        "runner.run_dir": str(request.run_dir),
        "runner.fingerprint": request.fingerprint,
        "runner.status": "RUNNING",
    }
    record.set_tags({**tags, **request.tags, **({"mlflow.source.git.commit": commit} if commit else {})})
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


def change_config(record: RunRecord, run_dir: Path, overrides: list[str]) -> None:
    """Of a run whose options change while it trains: who resumes it goes on with the last ones."""
    stored = RunFile.read(run_dir)
    changed = config.to_yaml(config.changed(stored.config, overrides))
    replace(stored, config=changed).write(run_dir)
    record.log_text(changed, "config.yaml")


def close_record(
    record: RunRecord, run_dir: Path, status: str, error: str | None, say: Callable[[str], None]
) -> None:
    """Final status, logs and result, and what rank 0 has left; what cannot be stored is said and does not hide how the
    training ended."""

    def store() -> None:
        # MLflow knows no pruned runs.
        record.finish("KILLED" if status == "PRUNED" else status, error)
        for name in ("logs", "plots", "profile"):
            record.log_artifact(run_dir / name)
        record.log_artifact(run_dir / "result.json")
        with ExitStack() as held:
            with suppress(ConfigError):  # its rank 0 lives and delivers itself; or the next start does
                held.enter_context(locked(run_dir, RANK_0_LOCK, seconds=0.5))
                record.take_over()
            finish_delivery(record, run_dir, say, INTERRUPTED_SECONDS if status == "KILLED" else None)

    if problem := _attempt(store):
        error_line(
            f"tracking.uri={record.uri}: run {record.run_id} is {status}, which could not be recorded: {problem}"
        )


def finish_delivery(
    record: RunRecord, folder: Path, say: Callable[[str], None], at_most: float | None = None
) -> None:
    """Wait for MLflow to have everything, and say what it does not have."""
    outcome = record.close(at_most)
    if outcome.outage:
        say(
            f"{relative(folder)}: not all of it is in MLflow yet ({outcome.outage}); type python -m runner sync"
        )
    if outcome.refused:
        error_line(
            f"tracking.uri={record.uri}: MLflow did not take all of run {record.run_id}: {outcome.refused[0]}"
        )


def ended(record: RunRecord, status: str) -> None:
    """Of a run that is not launched."""
    record.finish(status)
    record.close(INTERRUPTED_SECONDS)


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
        return first_line(error)
    return None
