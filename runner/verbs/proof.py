"""A verdict table, and trainings as processes that can be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from runner import interrupts, run_folder
from runner.errors import TrainingError, refuse
from runner.request import Request
from runner.run_folder import Result

Compose = Callable[[Sequence[str]], Request]  # the job that these arguments ask for
POLL_SECONDS = 0.002
LIMIT_SECONDS = 3600.0
TIMED = ("seconds/", "step_seconds/", "throughput/")  # metrics that differ each time


@dataclass(frozen=True)
class Proof:
    """What was compared, a line each: the columns' names first, the verdict last."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    holds: bool
    folder: Path
    tracking_uri: str | None
    notes: Sequence[str] = ()

    def lines(self) -> list[str]:
        table = [self.columns, *self.rows]
        widths = [max(len(row[index]) for row in table) for index in range(len(self.columns))]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table
        ]
        return [
            f"── {self.title}",
            *self.notes,
            *(line.rstrip() for line in shown),
            f"verdict: {'holds' if self.holds else 'FAILS'}",
        ]


def proof_folder(name: str) -> Path:
    """outputs/proofs/<day>/<time>-<name>, in the current directory."""
    return Path.cwd() / "outputs" / "proofs" / f"{datetime.now():%Y-%m-%d/%H-%M-%S}-{name}"  # noqa: DTZ005


def trains(request: Request) -> Request:
    """`request`, which is to be trained. Raises ConfigError for a dry run: without a training nothing is proved."""
    if request.experiment.dry_run:
        raise refuse("dry_run", True, "a proof needs trainings", "dry_run=false, or leave it out")
    return request


@contextmanager
def started(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m runner <arguments>`, ended with this process's own Ctrl-C and at the latest with the block."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            interrupts.ending()
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
        process.wait()


def trained(arguments: Sequence[str], run_dir: Path, log: Path) -> Result:
    """The result.json of a training that ran to its end. Raises TrainingError with its last line."""
    with started(arguments, log) as process:
        return ended(process, run_dir, log)


def ended(process: subprocess.Popen[bytes], run_dir: Path, log: Path) -> Result:
    """Its result.json, when the training has ended well. Raises TrainingError with its last line."""
    code = process.wait(LIMIT_SECONDS)
    result = run_folder.read_result(run_dir)
    if code != 0 or result is None:
        last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise TrainingError(
            f"the training in {run_dir} ended with exit code {code}: {last} (output in {log})"
        )
    return result


def kill_at(process: subprocess.Popen[bytes], run_dir: Path, step: int, whole_job: bool) -> None:
    """SIGKILL the last rank, or all ranks and the driver, once the checkpoint of `step` is there.

    Raises TrainingError where the training ends before, or its ranks are on another machine.
    """
    wanted = run_dir / "checkpoints" / f"step-{step:08d}"
    deadline = time.monotonic() + LIMIT_SECONDS
    while not wanted.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise TrainingError(
                f"the training in {run_dir} ended before step {step}, where it was to be killed"
            )
        time.sleep(POLL_SECONDS)
    ranks = [json.loads(path.read_text()) for path in (run_dir / "stalls").glob("rank-*.pid")]
    if any(rank["host"] != socket.gethostname() for rank in ranks):
        raise TrainingError("prove resume kills processes of this machine; type scaling.address=local")
    pids = [rank["pid"] for rank in sorted(ranks, key=lambda rank: rank["rank"])]
    for pid in [*pids, process.pid] if whole_job else pids[-1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
