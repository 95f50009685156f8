"""Refusals before launch and interruptions after it, with the deadlines that users are promised."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from mlflow import MlflowClient

from tests.conftest import environment
from tests.end_to_end.conftest import Finished


def test_more_than_the_machine_has_is_refused_in_three_seconds(command: Callable[..., Finished]) -> None:
    before = time.monotonic()
    done = command("scaling=local", "scaling.num_workers=64", "scaling.resources_per_worker.CPU=1")
    assert time.monotonic() - before < 3
    assert done.code == 2
    cpus = len(os.sched_getaffinity(0))
    assert done.stderr == (
        f"error: scaling.num_workers=64: 64 workers × 1 CPU need 64 CPUs, this machine has {cpus}; "
        f"type scaling.num_workers={cpus}\n"
    )
    assert not list((done.folder / "outputs").glob("mlflow*"))


def test_a_dry_run_takes_a_batch_without_ray_or_horovod(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from runner.__main__ import run\n"
        "code = run(['dry_run=true', 'scaling.num_workers=4'])\n"
        "assert not {'ray', 'horovod', 'mlflow'} & set(sys.modules), 'nothing of the launch may be imported'\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "lr 0.1 (base, batch 32) × 4 (linear: 128/32) = 0.4" in done.stdout
    assert re.search(
        r"^dry run: a step on 32 rows \(1, 8, 8\), 9,610 parameters: train/loss 2\.\d+  val/loss 2\.\d+  "
        r"val/accuracy 0\.\d+  throughput/samples_per_second [\d,.]+; nothing was launched$",
        done.stdout.splitlines()[-1],
    )
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


def test_an_interrupted_run_ends_in_ten_seconds_as_killed(
    tmp_path: Path, background: Callable[..., subprocess.Popen[str]]
) -> None:
    """By Ctrl-C in the training; tests/faults has the other moments, and SIGTERM."""
    process = background("trainer.epochs=100000")
    assert process.stdout
    shown = []
    for line in process.stdout:
        shown.append(line)
        if line.startswith("epoch "):
            break
    assert process.poll() is None, "".join(shown)
    own = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    os.kill(process.pid, signal.SIGINT)
    before = time.monotonic()
    assert process.wait(20) == 130
    assert time.monotonic() - before < 10
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in own) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in own if psutil.pid_exists(pid)] == []
    (path,) = (tmp_path / "outputs" / "runs").rglob("result.json")
    result = json.loads(path.read_text())
    assert result["status"] == "KILLED"
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    assert client.get_run(result["run_id"]).info.status == "KILLED"
