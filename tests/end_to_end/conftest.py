"""Real runs: in this process on one warm Ray where possible, as a command where the command itself is tested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner import __main__ as door
from runner.executors import ray_cluster
from runner.executors.live_workers import LiveWorkers
from runner.schema import Horovod
from tests.conftest import environment

Train = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    def results(self) -> list[dict[str, Any]]:
        """Every result.json under outputs/, oldest run first, with the run's folder as `folder`."""
        outputs = self.folder / "outputs"
        runs = [*outputs.glob("runs/*/*/result.json"), *outputs.glob("multiruns/*/*/*/result.json")]
        return [{**json.loads(path.read_text()), "folder": path.parent} for path in sorted(runs)]


@pytest.fixture(scope="session")
def _warm_ray() -> Iterator[None]:
    yield
    import ray

    ray.shutdown()


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _warm_ray: None) -> Train:
    """train(*overrides) → result.json of a run in this process; one Ray serves all of them."""

    def run(*overrides: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["runner"])
        monkeypatch.setattr(sys, "path", list(sys.path))
        folder = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        assert door.run([f"hydra.run.dir={folder}", *overrides]) == 0
        return {**json.loads((folder / "result.json").read_text()), "folder": folder}

    return run


@pytest.fixture(scope="module")
def workers(live: Callable[[int], LiveWorkers]) -> LiveWorkers:
    """Two live Horovod workers, for trainings without their launch."""
    return live(2)


@pytest.fixture(scope="module")
def live() -> Iterator[Callable[[int], LiveWorkers]]:
    """live(n): so many live workers, the same ones each time. They hold a little of the CPUs while the module runs."""
    ray_cluster.start(None, 2, (), False)
    groups: dict[int, LiveWorkers] = {}

    def find(size: int) -> LiveWorkers:
        if size not in groups or not groups[size].is_open:  # a failed job has ended it
            groups[size] = LiveWorkers(size, Horovod())
        return groups[size]

    yield find
    for group in groups.values():
        group.close()


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Finished]:
    """command(*arguments) runs `python -m runner` in an empty folder, to its end."""

    def run(*arguments: str, folder: Path = tmp_path, timeout: float = 150) -> Finished:
        done = subprocess.run(
            [sys.executable, "-m", "runner", *arguments],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr, folder)

    return run


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """background(*arguments) starts `python -m runner` in a session of its own; killed with all of it at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, folder: Path = tmp_path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", *arguments],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's own folder, outside the checkout: models/, datasets/, a config folder with an experiment."""
    files = {
        "models/tanh.py": """
            import os
            from torch import nn

            class Tanh(nn.Module):
                def __init__(self, in_features, out_features, width=4, fail_on_rank=None):
                    super().__init__()
                    self.layers = nn.Sequential(nn.Linear(in_features, width), nn.Tanh(), nn.Linear(width, out_features))
                    self.fail_on_rank = fail_on_rank
                    print("built with width", width)
                    os.write(2, b"a line from below Python\\n")

                def forward(self, inputs):
                    if self.fail_on_rank is not None and os.environ.get("HOROVOD_RANK") == str(self.fail_on_rank):
                        raise ValueError("the sky fell")
                    return self.layers(inputs)
            """,
        "datasets/quadrants.py": """
            import numpy as np

            def load(rows=103):
                points = np.random.default_rng(0).standard_normal((rows, 2))
                labels = (points[:, 0] * points[:, 1] > 0).astype(int)
                return {"train": (points[:80], labels[:80]), "val": (points[80:], labels[80:])}
            """,
        "configs/model/tanh.yaml": """
            _target_: models.tanh.Tanh
            in_features: null
            out_features: null
            width: 4
            fail_on_rank: null
            """,
        "configs/dataset/quadrants.yaml": """
            _target_: datasets.quadrants.load
            task: classification
            rows: 103
            """,
        "configs/experiment/mine.yaml": """
            # @package _global_
            defaults:
              - override /model: tanh
              - override /dataset: quadrants
            trainer:
              epochs: 2
            """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        path.write_text("\n".join(line.removeprefix(" " * 12) for line in lines).rstrip() + "\n")
    return tmp_path
