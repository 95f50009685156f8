"""A rank that is stepped comes to what a training of as many steps comes to. In this process, without Ray."""

import json
import os

import pytest
import torch

from runner import checkpoint, worker
from runner.communicator import SingleProcess
from runner.executors.replica import Replica
from runner.options import with_its_rate, with_options
from runner.schema import Interval
from tests.test_worker import job_of, memory

STEPS_PER_EPOCH = 3
MLP = {"_target_": "models.mlp.MLP", "in_features": None, "out_features": None, "dropout": 0.5}
SCHEDULERS = "torch.optim.lr_scheduler"


@pytest.fixture(autouse=True)
def process():
    """Put back what a training changes in the process."""
    threads, environment, place = torch.get_num_threads(), dict(os.environ), os.getcwd()  # noqa: PTH109
    yield
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def replica_of(folder, settings=None):
    replica = Replica(SingleProcess)
    replica.begin(job_of(folder, settings), memory(), {})
    return replica


def trained(folder, settings):
    """The hash of the weights that a whole training ends with, and what it measured."""
    reports = []
    worker.train(job_of(folder, settings), memory(), {}, SingleProcess(), reports.append)
    history = [metrics for report in reports for metrics in report.get("history", [])]
    return next(each["weights_sha256"] for each in reports if "weights_sha256" in each), history


def losses(history):
    return [(metrics["epoch"], metrics["train/loss"], metrics["val/loss"]) for metrics in history]


def with_lr(replica, lr):
    job = replica._job
    experiment = with_options(job.experiment, {"optimizer.lr": lr})
    replica.change_lr(experiment, with_its_rate(job.plan, experiment))


@pytest.mark.parametrize("parts", [[1] * 9, [5, 4], [3, 3, 3], [9]])
def test_steps_in_parts_are_a_training_of_as_many(tmp_path, parts):
    digest, history = trained(tmp_path / "whole", {"model.target": MLP, "trainer.max_steps": 9})
    replica = replica_of(tmp_path / "parts", {"model.target": MLP, "trainer.epochs": 20})
    reached = [replica.train(steps) for steps in parts]
    assert replica.weights_sha256() == digest == checkpoint.weights_sha256(replica.weights())
    assert losses(metrics for each in reached for metrics in each.measured) == losses(history)
    assert len(history) == 9 / STEPS_PER_EPOCH


def test_it_says_where_it_stands(tmp_path):
    replica = replica_of(tmp_path)
    two, three, end = replica.train(2), replica.train(1), replica.train(None)
    assert (two.step, two.epoch, two.lr, two.is_over, two.measured) == (2, 2 / 3, 0.1, False, [])
    assert two.loss[1:] == [16, 16]  # rows
    assert (three.step, three.epoch, three.loss) == (3, 1, [0, 0, 0])
    assert [metrics["epoch"] for metrics in three.measured] == [1]
    assert (end.step, end.epoch, end.is_over) == (12, 4, True)
    assert [metrics["epoch"] for metrics in end.measured] == [2, 3, 4]


def test_to_look_in_between_changes_nothing(tmp_path):
    digest, _ = trained(tmp_path / "whole", {"model.target": MLP, "trainer.max_steps": 8})
    replica = replica_of(tmp_path / "seen", {"model.target": MLP})
    replica.train(4)
    assert replica.evaluate() == replica.evaluate()
    replica.weights_sha256()
    replica.call(lambda replica: replica.model)
    replica.train(4)
    assert replica.weights_sha256() == digest


def test_another_lr_is_the_one_of_the_next_step(tmp_path):
    """Halved after 4 steps it is what StepLR does, bit for bit, momentum and all."""
    sgd = {"_target_": "torch.optim.SGD", "momentum": 0.9}
    halving = {"_target_": f"{SCHEDULERS}.StepLR", "step_size": 4, "gamma": 0.5}
    whole = {"optimizer.target": sgd, "scheduler.target": halving, "trainer.max_steps": 8}
    digest, _ = trained(tmp_path / "whole", whole)
    replica = replica_of(tmp_path / "changed", {"optimizer.target": sgd})
    assert replica.train(4).lr == 0.1
    with_lr(replica, 0.05)
    assert replica.train(4).lr == 0.05
    assert replica.weights_sha256() == digest


@pytest.mark.parametrize(
    "settings",
    [
        {
            "scheduler.target": {
                "_target_": f"{SCHEDULERS}.CosineAnnealingLR",
                "T_max": None,
                "eta_min": 0.001,
            }
        },
        {"scheduler.target": {"_target_": f"{SCHEDULERS}.ExponentialLR", "gamma": 0.9}},
        {"scheduler.target": {"_target_": f"{SCHEDULERS}.OneCycleLR", "max_lr": None, "total_steps": None}},
        {
            "scheduler.target": {"_target_": f"{SCHEDULERS}.MultiStepLR", "milestones": [1, 2], "gamma": 0.1},
            "scheduler.interval": Interval.epoch,
        },
        {"scheduler.warmup_steps": 7},
    ],
    ids=["cosine", "exponential", "one cycle", "multistep", "warm-up"],
)
def test_a_schedule_goes_on_as_if_the_lr_had_always_been_so(tmp_path, settings):
    changed = replica_of(tmp_path / "changed", settings)
    always = replica_of(tmp_path / "always", {**settings, "optimizer.lr": 0.03})
    changed.train(4)
    always.train(4)
    with_lr(changed, 0.03)
    lrs = [(changed.train(1).lr, always.train(1).lr) for _ in range(8)]
    assert [lr for lr, _ in lrs] == pytest.approx([lr for _, lr in lrs], rel=1e-12)
    assert changed.state.ended


def test_parameters_with_an_lr_of_their_own_keep_it(tmp_path):
    rules = [{"match": "bias", "lr": 0.5}]
    replica = replica_of(tmp_path, {"optimizer.param_groups": rules})
    replica.train(1)
    with_lr(replica, 0.01)
    assert [group["lr"] for group in replica.learner.optimizer.param_groups] == [0.01, 0.5]


def test_an_error_is_recorded_as_that_of_any_rank(tmp_path):
    replica = replica_of(tmp_path)
    with pytest.raises(ZeroDivisionError):
        replica.call(lambda replica: 1 / 0)
    run_dir = replica._job.run_dir
    record = json.loads((run_dir / "errors" / "rank-0.json").read_text())
    assert (record["rank"], record["type"]) == (0, "ZeroDivisionError")
    assert "ZeroDivisionError: division by zero" in (run_dir / "logs" / "rank-0.log").read_text()
