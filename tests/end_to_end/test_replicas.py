"""Live replicas: stepped from Python they come to what a run comes to; what ends them, and what they refuse."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch

from runner.errors import ConfigError, LaunchError, TrainingError
from runner.executors import ray_cluster
from runner.reach import unreachable
from runner.replicas import Replicas
from tests.end_to_end.conftest import Train

SMALL = ("scaling.num_workers=2", "scaling.address=local")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _warm_ray: None) -> Path:
    """A working directory, and the Ray of all tests, which replicas leave as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ray_cluster.start(None, len(os.sched_getaffinity(0)), (), False)
    return tmp_path


def test_five_steps_leave_equal_weights_on_each_of_them_and_nothing_else(folder: Path) -> None:
    """The example of Horovod's documentation: 5 steps, then `result` is N copies of the weights."""
    import ray

    with Replicas("model=mlp", *SMALL) as replicas:
        assert replicas.train(steps=5)["step"] == 5 == replicas.step
        result = replicas.execute(lambda replica: replica.weights())
        assert [type(each) for each in result] == [dict, dict]
        names = [f"layers.{layer}.{name}" for layer in (1, 3) for name in ("weight", "bias")]
        first, second = replicas.weights()
        assert list(first) == list(second) == names
        assert all(torch.equal(first[name], second[name]) for name in names)
        assert all(torch.equal(first[name], result[1][name]) for name in names)
        assert replicas.execute_single(lambda replica: replica.rank) == 0
        assert replicas._group is not None
        # The ranks have met: nobody else can ask there.
        port = replicas._group._adapter.coordinator.global_rendezv_port
        assert unreachable("127.0.0.1", port) is not None
        (placed,) = replicas._group._placed
    assert ray.util.placement_group_table(placed)["state"] == "REMOVED"
    assert ray.is_initialized()  # it was there before


def test_steps_are_those_of_a_run(folder: Path, train: Train) -> None:
    """By any executor: all of them end with the same weights (tests/faults/test_executors.py)."""
    run = train("trainer.max_steps=30", "tracking=none", "scaling.num_workers=2", "executor=ray_executor")
    with Replicas(*SMALL) as replicas:
        replicas.train(steps=5)
        before = replicas.evaluate()
        assert before == replicas.evaluate() != {}
        replicas.train(steps=18)  # an epoch is 23
        reached = replicas.train(steps=7)
        assert (reached["step"], reached["epoch"]) == (30, pytest.approx(1 + 7 * 64 / 1438))
        assert [metrics["epoch"] for metrics in replicas.history] == [1]
        assert replicas.weights_sha256() == run["weights_sha256"]
        assert replicas.evaluate()["val/loss"] == run["metrics"]["val/loss"] < before["val/loss"]


def test_another_lr_to_the_end_and_not_beyond_it(folder: Path) -> None:
    with Replicas("trainer.epochs=2", *SMALL) as replicas:
        assert replicas.train(steps=40)["lr"] == 0.2
        assert replicas.set_lr(0.05) == "lr 0.05 (base, batch 32) × 2 (linear: 64/32) = 0.1"
        with pytest.raises(ConfigError, match=r"^optimizer.lr=0: must be a finite number above 0; type"):
            replicas.set_lr(0)
        left = r"^steps=7: 6 are left of 46 = 2 epochs × 23; .*; type train\(steps=6\)$"
        with pytest.raises(ConfigError, match=left):
            replicas.train(steps=7)
        with pytest.raises(ConfigError, match=r"^steps=0: must be a whole number, 1 or more; type train"):
            replicas.train(steps=0)
        assert replicas.train() == {"step": 46, **replicas.history[-1]}
        assert replicas.history[-1]["lr"] == 0.1
        with pytest.raises(TrainingError, match=r"^the training is over, at step 46; trainer.epochs=… makes"):
            replicas.train(steps=1)
        assert len(replicas.weights()) == 2  # they are still there


@pytest.mark.parametrize(
    ("rank", "how", "said"),
    [
        (
            1,
            "raises",
            r"^rank 1: ZeroDivisionError: division by zero \(.*test_replicas.py:\d+; full trace in .*rank-1.log\)$",
        ),
        (1, "is killed", r"^rank 1 ended without a Python error \(killed, out of memory or os._exit\)"),
    ],
)
def test_a_failure_is_one_line_and_ends_them(folder: Path, rank: int, how: str, said: str) -> None:
    def fail(replica: object) -> None:
        """Rank 0 waits for rank 1 by then."""
        if replica.rank != rank:  # type: ignore[attr-defined]
            replica.weights_sha256()  # type: ignore[attr-defined]
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        1 / 0  # noqa: B018

    with Replicas(*SMALL) as replicas:
        replicas.train(steps=2)
        with pytest.raises(TrainingError, match=said):
            replicas.execute(fail)
        with pytest.raises(LaunchError, match=r"^these replicas are closed$"):
            replicas.train(steps=2)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["executor=local", "scaling.num_workers=1"],
            "executor=local: replicas are workers of Horovod's RayExecutor; type executor=ray_executor",
        ),
        (["dry_run=true"], "dry_run=true: replicas train; type python -m runner dry_run=true …"),
        (["modell=mlp"], "modell: no such key; "),
    ],
)
def test_what_the_command_refuses_is_refused(folder: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Replicas(*overrides)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
    assert not (folder / "outputs").exists()
