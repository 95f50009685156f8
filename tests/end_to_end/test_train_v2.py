"""Horovod on Ray Train V2: the backend by itself, and one version of Ray Train a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.errors import ConfigError
from runner.executors import ray_cluster
from tests.conftest import environment

PROJECT = Path(__file__).resolve().parents[2]


def test_the_backend_trains_and_meets_anew_after_a_lost_worker(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.on_train_v2", str(tmp_path)],
        cwd=PROJECT,
        env={**environment(), "RAY_TRAIN_V2_ENABLED": "1", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("attempt-*.json")}
    assert sorted(found) == [f"attempt-{attempt}-rank-{rank}" for attempt in (1, 2) for rank in (0, 1)]
    for name, each in found.items():
        assert each["sum"] == 1.0
        assert each["place"] == [int(name[-1]), 2, int(name[-1]), 2, 0]
    # The second attempt has a server of its own; nobody listens any more where the first one's was.
    assert found["attempt-1-rank-0"]["listening"] == [True]
    assert found["attempt-2-rank-0"]["listening"] == [True, False]


@pytest.mark.parametrize(
    ("executor", "imported", "used"), [("train_v2", {}, "V1"), ("horovod_trainer", {"UserCallback": 1}, "V2")]
)
def test_a_process_has_one_version(
    monkeypatch: pytest.MonkeyPatch, executor: str, imported: dict[str, int], used: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(**imported))
    with pytest.raises(ConfigError) as refused:
        ray_cluster.use_train(executor == "train_v2", executor)
    assert str(refused.value) == (
        f"executor={executor}: this process has used Ray Train {used}, and has one version of it; "
        "type the same in a new process"
    )
    monkeypatch.setitem(ray_cluster.ENVIRONMENT, "RAY_TRAIN_V2_ENABLED", "neither")
    ray_cluster.use_train(executor != "train_v2", executor)
    assert ray_cluster.ENVIRONMENT["RAY_TRAIN_V2_ENABLED"] == ("0" if executor == "train_v2" else "1")
