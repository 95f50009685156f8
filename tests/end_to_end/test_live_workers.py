"""Live workers: jobs one after another, the one cause of a failure, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.errors import LaunchError, PreflightError, TrainingError
from runner.executors import ray_cluster
from runner.executors.live_workers import LiveWorkers
from runner.prepare import Prepared
from runner.schema import Horovod
from runner.verbs.proof_jobs import job_of, memory_of
from tests.end_to_end import warm

SMALL = ["dataset.limit_rows=40", "trainer.epochs=1", "tracking=none"]
MODEL = """
import os, signal
from models.mlp import MLP

class Failing(MLP):
    def __init__(self, in_features, out_features, how):
        super().__init__(in_features, out_features)
        self.how = how

    def forward(self, inputs):
        if os.environ.get("HOROVOD_RANK") == "1" and self.how == "raises":
            raise ValueError("the sky fell")
        if os.environ.get("HOROVOD_RANK") == "1" and self.how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)
"""


def failing(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """A model of the user's own, which only `folder` on the import path makes importable."""
    (folder / "model").mkdir()
    (folder / "model" / "failing.yaml").write_text(
        "_target_: failing.Failing\nin_features: null\nout_features: null\nhow: null\n"
    )
    (folder / "failing.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(folder))
    return warm.prepared([*SMALL, "model=failing", f"model.how={how}"], folder, config_dir=folder)


def test_jobs_one_after_another_give_what_each_gives_alone(workers: LiveWorkers, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for number, seed in enumerate((0, 1, 0)):
        folder = tmp_path / str(number)
        reports = warm.train(workers, warm.prepared([*SMALL, f"seed={seed}"], folder), folder)
        found.append(next(report for report in reports if "weights_sha256" in report))
    first, other, again = (report["weights_sha256"] for report in found)
    assert first == again != other


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", r"^rank 1: ValueError: the sky fell \(.*failing\.py:12; full trace in .*rank-1\.log\)$"),
        ("is killed", r"^rank 1 ended without a Python error \(killed, out of memory or os\._exit\)"),
    ],
)
def test_a_failure_is_one_line_with_its_rank_and_ends_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    """Rank 0 waits for rank 1 in a collective by then, and nobody waits for rank 0."""
    ray_cluster.start(None, 2, (), False)
    prepared = failing(tmp_path, how, monkeypatch)
    job = job_of(prepared, tmp_path / "run", (str(tmp_path),))
    with LiveWorkers(2, Horovod()) as group:
        with pytest.raises(TrainingError, match=said):
            group.train(job, memory_of(prepared))
        with pytest.raises(LaunchError, match="these workers are closed"):
            group.train(job, memory_of(prepared))


def test_a_job_with_other_settings_of_horovod_is_refused(workers: LiveWorkers, tmp_path: Path) -> None:
    prepared = warm.prepared([*SMALL, "horovod.cycle_time_ms=5"], tmp_path)
    with pytest.raises(LaunchError, match="this job has others"):
        warm.train(workers, prepared, tmp_path)


def test_what_is_not_read_when_ranks_connect_is_the_job_s(workers: LiveWorkers, tmp_path: Path) -> None:
    """Gradients in float16 give other weights."""
    shas = []
    for compression in ("none", "fp16"):
        prepared = warm.prepared([*SMALL, f"horovod.compression={compression}"], tmp_path)
        reports = warm.train(workers, prepared, tmp_path / compression)
        shas.append(next(report["weights_sha256"] for report in reports if "weights_sha256" in report))
    assert shas[0] != shas[1]


def test_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "NodeManagerHostname": "elsewhere"}])
    with pytest.raises(PreflightError, match=r"on this machine only; type scaling\.address=local"):
        LiveWorkers(2, Horovod())


def test_a_group_that_is_not_deterministic_takes_no_deterministic_job(
    workers: LiveWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = warm.prepared([*SMALL, "trainer.deterministic=true"], tmp_path)
    assert warm.train(workers, prepared, tmp_path / "exact")
    monkeypatch.setattr(workers, "_deterministic", False)
    with pytest.raises(LaunchError, match="this job has others"):
        warm.train(workers, prepared, tmp_path / "refused")


@pytest.mark.usefixtures("workers")
def test_a_local_ray_has_no_process_that_nobody_uses() -> None:
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert any("/raylet " in command for command in commands)
    for unused in ("dashboard.py", "/monitor.py", "log_monitor.py"):
        assert not any(unused in command for command in commands)
