"""n steps, against k steps + SIGKILL + the rest: of a rank, which is restarted, and of the whole job, which is resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner import checkpoint
from runner.report.console import Screen
from runner.run_folder import Result, RunFile
from runner.verbs.proof import TIMED, Compose, Proof, ended, kill_at, proof_folder, started, trained, trains

COLUMNS = ("training", "killed at", "steps", "restarts", "weights sha256", "metrics", "verdict")


def prove(overrides: Sequence[str], compose: Compose, screen: Screen) -> Proof:
    """Three trainings of the experiment, each in processes of its own. Raises ConfigError."""
    trains(compose(overrides))
    folder = proof_folder("resume")
    screen.line(f"prove resume: three trainings, in {folder}")
    whole = folder / "uninterrupted"
    result = trained([*overrides, *fixed(whole)], whole, folder / "uninterrupted.log")
    steps = newest_step(whole)
    middle = steps // 2 + 1
    expected = measured(whole)
    rows = [("uninterrupted", "", str(steps), "0", result["weights_sha256"][:16], str(len(expected)), "")]
    holds = True
    for name, whole_job in (("rank-killed", False), ("job-killed", True)):
        run_dir, log = folder / name, folder / f"{name}.log"
        screen.line(f"{name} at step {middle}")
        found = interrupted([*overrides, *fixed(run_dir, middle)], run_dir, log, middle, whole_job)
        is_equal = found["weights_sha256"] == result["weights_sha256"] and measured(run_dir) == expected
        holds &= is_equal
        rows.append(
            (
                name,
                f"step {middle}",
                str(newest_step(run_dir)),
                str(found["restarts"]),
                found["weights_sha256"][:16],
                str(len(measured(run_dir))),
                "equal" if is_equal else "NOT equal",
            )
        )
    uri = RunFile.read(whole).tracking_uri
    return Proof("resume: bit for bit", COLUMNS, rows, holds, folder, uri)


def interrupted(arguments: Sequence[str], run_dir: Path, log: Path, step: int, whole_job: bool) -> Result:
    """The result of a training that was killed once, at `step`: its last rank, or all ranks and the driver."""
    with started(arguments, log) as process:
        kill_at(process, run_dir, step, whole_job)
        if not whole_job:
            return ended(process, run_dir, log)
        process.wait()
    return trained(["resume", f"run_dir={run_dir}"], run_dir, log)


def fixed(run_dir: Path, every: int | None = None) -> list[str]:
    """What a proof needs, whatever the experiment says."""
    settings = ["trainer.deterministic=true", "tracking.log_model=false", "tracking.plots=false"]
    return [*settings, f"hydra.run.dir={run_dir}", *([f"checkpoint.every_steps={every}"] if every else [])]


def newest_step(run_dir: Path) -> int:
    return int(checkpoint.committed(run_dir / "checkpoints")[-1].name.removeprefix("step-"))


def measured(run_dir: Path) -> list[Any]:
    """(step, metrics) of all reports of a training, without its times."""
    _, state = checkpoint.load(checkpoint.committed(run_dir / "checkpoints")[-1])
    lines = [json.loads(line) for line in state["history"].numpy().tobytes().split(b"\n") if line]
    return [
        (
            line["step"],
            {key: repr(value) for key, value in line["metrics"].items() if not key.startswith(TIMED)},
        )
        for line in lines
    ]
