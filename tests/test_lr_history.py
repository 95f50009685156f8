"""The LR that each step really had is in the training's history, in its checkpoints, and in MLflow, once."""

import json
import math

import pytest
from mlflow import MlflowClient

from runner import worker
from runner.communicator import SingleProcess
from runner.plan import DataFacts, make_plan
from runner.resources import ResourcePlan
from runner.tracking import open_record
from tests.goings_on import Case

COSINE = {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": None}
STEPS, LR = 16, 0.02  # 4 an epoch


def case_of(**settings):
    sizes = {"trainer.epochs": 4, "trainer.batch_size": 8, "optimizer.lr": LR, "checkpoint.every_steps": 3}
    return Case({**sizes, **settings}, 1, 32)


def history_of(taken):
    return [json.loads(line) for line in taken.state["history"].numpy().tobytes().split(b"\n")]


def lr_points(history):
    return [(each["step"], each["metrics"]["lr"]) for each in history if "lr" in each["metrics"]]


def cosine(step):
    """Of the `step`-th step, counted from 1."""
    return LR * (1 + math.cos(math.pi * (step - 1) / STEPS)) / 2


def test_an_lr_that_changes_each_step_is_there_at_each_step():
    _, snapshots = case_of(**{"scheduler.target": COSINE}).trained()
    for taken in snapshots:
        points = lr_points(history_of(taken))
        assert [step for step, _ in points] == list(range(1, taken.facts["step"] + 1))
        assert [lr for _, lr in points] == pytest.approx([cosine(step) for step, _ in points], rel=1e-12)
    moments = [each["milliseconds"] for each in history_of(snapshots[-1])]
    assert moments == sorted(moments)


def test_a_constant_lr_is_there_at_the_first_step_and_at_the_reports():
    _, snapshots = case_of().trained()
    assert lr_points(history_of(snapshots[-1])) == [(step, LR) for step in (1, 4, 8, 12, 16)]


def test_an_lr_that_changes_by_epoch_is_there_where_it_changes():
    halved = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 6, "gamma": 0.5}
    _, snapshots = case_of(**{"scheduler.target": halved}).trained()
    half, quarter = LR / 2, LR / 4
    points = [(1, LR), (4, LR), (7, half), (8, half), (12, half), (13, quarter), (16, quarter)]
    assert lr_points(history_of(snapshots[-1])) == points


def test_mlflow_has_the_lr_of_each_step_once_though_the_training_was_killed(tmp_path, monkeypatch):
    case = case_of(**{"scheduler.target": COSINE, "tracking.log_model": False, "tracking.plots": False})
    experiment, data = case.experiment, DataFacts(32, 5, (4,), 1)
    record = open_record(experiment.tracking, tmp_path, tmp_path / "run", "lr")
    job = worker.Job(
        experiment,
        make_plan(experiment, data, ResourcePlan(1, 1.0, 0.0)),
        data,
        tmp_path / "run",
        record.run_id,
        record.uri,
        tmp_path,
        (),
        {},
    )
    memory = worker.Memory(case.splits())
    saved, save = [], worker.save

    def dies_at_the_fourth(*arguments):
        if len(saved) == 3:
            raise KeyboardInterrupt
        save(*arguments)
        saved.append(1)

    monkeypatch.setattr(worker, "save", dies_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        worker.train(job, memory, {}, SingleProcess(), lambda values: None)
    client = MlflowClient(record.uri)
    before = {metric.step for metric in client.get_metric_history(record.run_id, "lr")}
    assert 0 < len(before) < STEPS
    monkeypatch.setattr(worker, "save", save)
    reports = []
    worker.train(job, memory, {}, SingleProcess(), reports.append, is_restart=True)
    found = client.get_metric_history(record.run_id, "lr")
    assert sorted(metric.step for metric in found) == list(range(1, STEPS + 1))
    for metric in found:
        assert metric.value == pytest.approx(cosine(metric.step), rel=1e-12)
    # The driver's history is that of the reports: epochs, not LRs.
    assert [each["epoch"] for report in reports for each in report.get("history", [])] == [1, 2, 3, 4]
    record.finish("FINISHED")
    record.close()
