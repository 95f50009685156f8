"""One rank from build to report, in this process: what it checkpoints, selects, reports and records."""

import dataclasses
import json
import os
import sys

import numpy as np
import pytest
import torch

from runner import checkpoint, saving, worker
from runner.communicator import SingleProcess
from runner.errors import ConfigError, TrainingError
from runner.ingest.rows import Arrays
from runner.job import enter
from runner.learner import build_learner
from runner.plan import DataFacts, make_plan
from runner.prepare import check_monitor
from runner.process_state import settle
from runner.rehearsal import rehearse
from runner.resources import ResourcePlan
from runner.schema import Mode
from runner.tracking import NullTracker
from tests.fakes import make_experiment, on_ranks, without_times

ROWS, VAL_ROWS = 24, 6


@pytest.fixture(autouse=True)
def torch_settings():
    """Put back what `settle` changes in the process."""
    threads, environment = torch.get_num_threads(), dict(os.environ)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)


def memory():
    draws = np.random.default_rng(0)
    train, val = (draws.standard_normal((rows, 3)).astype(np.float32) for rows in (ROWS, VAL_ROWS))
    return worker.Memory({"train": Arrays(train, train[:, :1] * 2), "val": Arrays(val, val[:, :1] * 2)})


def job_of(tmp_path, settings=None):
    experiment = make_experiment(
        {"scaling.num_workers": 1, "trainer.batch_size": 8, "trainer.epochs": 4, **(settings or {})}
    )
    data = DataFacts(ROWS, VAL_ROWS, (3,), 1)
    plan = make_plan(experiment, data, ResourcePlan(1, 1.0, 0.0))
    return worker.Job(experiment, plan, data, tmp_path / "run", None, None, tmp_path, (), {})


def trained(tmp_path, settings=None):
    """(job, all epochs' metrics, the report that ends the training)."""
    job, reports = job_of(tmp_path, settings), []
    worker.train(job, memory(), {}, SingleProcess(), reports.append)
    return job, [epoch for report in reports for epoch in report.get("history", [])], reports[-2]


def names(job):
    return [path.name for path in checkpoint.committed(job.run_dir / "checkpoints")]


def names_of(step):
    return f"step-{step:08d}"


def test_every_epoch_is_reported_once_and_a_report_sums_the_training_up(tmp_path):
    job, epochs, last = trained(tmp_path)
    assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3, 4]
    assert last["best"] == min(epochs, key=lambda epoch: epoch["val/loss"])
    assert sorted(last) == ["best", "examined", "history", "pruned", "started", "step", "weights_sha256"]
    assert last["pruned"] is False
    _, state = checkpoint.load(job.run_dir / "checkpoints" / "step-00000012")
    assert last["weights_sha256"] == checkpoint.weights_sha256(state["weights"])
    json.dumps(last)


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(tmp_path):
    hashes = [
        trained(tmp_path / str(n), {"seed": seed})[2]["weights_sha256"] for n, seed in enumerate((0, 0, 1))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({}, [3, 4]),
        ({"checkpoint.keep": 9}, [1, 2, 3, 4]),
        ({"checkpoint.keep": 9, "checkpoint.every_epochs": 3, "checkpoint.mode": Mode.max}, [1, 3, 4]),
        ({"checkpoint.keep": 1, "checkpoint.mode": Mode.max}, [1, 4]),  # the greatest loss is the first
        ({"checkpoint.keep": 1}, [4]),
        ({"checkpoint.enabled": False}, []),
    ],
)
def test_which_checkpoints_are_left(tmp_path, settings, left):
    job, epochs, _ = trained(tmp_path, settings)
    losses = [epoch["val/loss"] for epoch in epochs]
    assert losses == sorted(losses, reverse=True)  # so by val/loss each epoch is the best so far
    assert names(job) == [f"step-{3 * epoch:08d}" for epoch in left]


def test_a_checkpoint_says_where_the_training_stood(tmp_path):
    job, epochs, _ = trained(tmp_path)
    manifest, state = checkpoint.load(job.run_dir / "checkpoints" / "step-00000009")
    assert (manifest["epoch"], manifest["step"], manifest["num_workers"]) == (3, 9, 1)
    assert (manifest["is_best"], manifest["best"]) == (True, epochs[2]["val/loss"])
    assert manifest["metrics"] == epochs[2]
    assert state["schedule"]["step"] == 9
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.1


def test_the_learner_has_the_scaled_lr_and_the_data_s_sizes(tmp_path):
    job = job_of(tmp_path, {"lr_scaling.base_batch_size": 2, "scheduler.warmup_epochs": 1.0})
    learner = build_learner(job.experiment, job.plan, job.data, SingleProcess(), torch.device("cpu"))
    assert learner.model.layers[1].weight.shape == (1, 3)
    assert learner.schedule.lr == pytest.approx(0.1)  # the warm-up starts at the base LR …
    for _ in range(3):
        learner.optimizer.step()
        learner.schedule.advance()
    assert learner.schedule.lr == pytest.approx(0.4)  # … and ends at 0.1 × 8/2


def test_an_unknown_monitor_is_refused_with_those_there_are():
    check_monitor(make_experiment({"checkpoint.monitor": "val/mae"}))
    with pytest.raises(ConfigError) as refused:
        check_monitor(make_experiment({"checkpoint.monitor": "val/mea"}))
    assert str(refused.value) == (
        "checkpoint.monitor=val/mea: a regression measures train/loss, val/loss, val/mae; "
        "type checkpoint.monitor=val/mae"
    )


def test_ranks_with_different_weights_are_an_error():
    def rank(communicator, offset):
        model = torch.nn.Linear(2, 1)
        torch.nn.init.constant_(model.weight, 1.0 + offset * communicator.rank)
        torch.nn.init.zeros_(model.bias)
        return saving.agree(model, model, communicator)

    same = on_ranks(3, lambda communicator: rank(communicator, 0.0))
    assert len(set(same)) == 1
    with pytest.raises(TrainingError, match="the ranks ended with different weights"):
        on_ranks(3, lambda communicator: rank(communicator, 2**-20))


def test_a_failing_rank_records_its_error_and_logs_its_trace(tmp_path):
    job = job_of(tmp_path)

    def connect():
        raise ValueError("no peers")

    here, path = os.getcwd(), list(sys.path)  # noqa: PTH109
    try:
        with pytest.raises(ValueError, match="no peers"):
            worker.train_loop_per_worker(job, memory(), {}, connect, print, rank=2)
    finally:
        os.chdir(here)
        sys.path[:] = path
    record = json.loads((job.run_dir / "errors" / "rank-2.json").read_text())
    assert (record["rank"], record["type"], record["message"]) == (2, "ValueError", "no peers")
    assert record["line"] == f"{__file__}:{connect.__code__.co_firstlineno + 1}"
    assert "ValueError: no peers" in (job.run_dir / "logs" / "rank-2.log").read_text()


def test_a_rank_enters_the_driver_s_directory_and_import_roots(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/a", "/b"])
    job = job_of(tmp_path)
    enter(worker.Job(**{**vars(job), "import_roots": ("/first", "/b", "/second"), "working_dir": tmp_path}))
    assert sys.path == ["/first", "/second", "/a", "/b"]
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109


def test_deterministic_settings_hold_before_anything_is_built(tmp_path):
    job = job_of(tmp_path, {"trainer.deterministic": True, "seed": 5})
    settle(job.experiment, job.plan)
    assert torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.get_num_threads() == job.plan.resources.threads == 1
    assert torch.initial_seed() == 5


def test_metrics_measured_before_a_failure_are_stored(monkeypatch, tmp_path):
    stored, closed = [], []

    class Recorder(NullTracker):
        def log_metrics(self, measured):
            stored.append(measured.step)
            if measured.step == 6:
                raise ValueError("the sky fell")

        def close(self):
            closed.append(True)

    monkeypatch.setattr(worker, "open_tracker", lambda *arguments: Recorder())
    with pytest.raises(ValueError, match="the sky fell"):
        worker.train(job_of(tmp_path), memory(), {}, SingleProcess(), print)
    assert (stored, closed) == ([1, 3, 6], [True])  # the first LR, and two epochs


@pytest.mark.parametrize("dies_at", [3, 6, 12])
def test_a_restart_goes_on_from_the_last_checkpoint_and_reports_all_from_the_start(
    monkeypatch, tmp_path, dies_at
):
    """Every epoch is measured again that has no checkpoint yet; the tracker learns which it has."""
    _, epochs, last = trained(tmp_path / "whole")
    reports, opened = [], []

    class Dying(NullTracker):
        def log_metrics(self, measured):
            if len(opened) == 1 and measured.step == dies_at:
                raise KeyboardInterrupt  # no error of the training: as a signal would end it

    def open_tracker(settings, folder, uri, run_id, history):
        opened.append(history)
        return Dying()

    monkeypatch.setattr(worker, "open_tracker", open_tracker)
    job = job_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        worker.train(job, memory(), {}, SingleProcess(), print)
    done = dies_at // 3 - 1  # epochs with a checkpoint
    assert names(job) == [names_of(3 * epoch) for epoch in range(1, done + 1)][-2:]
    worker.train(job, memory(), {}, SingleProcess(), reports.append, is_restart=True)
    assert reports[0]["resumed"] == (names_of(3 * done) if done else None)
    found = [metrics for report in reports for metrics in report.get("history", [])]
    assert [without_times(each) for each in found] == [without_times(each) for each in epochs]
    assert without_times(reports[-2]["best"]) == without_times(last["best"])
    assert reports[-2]["weights_sha256"] == last["weights_sha256"]
    assert opened[0] is None
    epochs_done = [3 * epoch for epoch in range(1, done + 1)]
    assert [measured.step for measured in opened[1]] == [1] * bool(done) + epochs_done  # first the first LR
    assert names(job) == ["step-00000009", "step-00000012"]


def test_a_training_that_is_done_is_only_summed_up_again(tmp_path):
    """Killed after its last checkpoint, before its end was recorded."""
    job, epochs, last = trained(tmp_path)
    reports = []
    worker.train(dataclasses.replace(job, resumes=True), memory(), {}, SingleProcess(), reports.append)
    assert reports[0] == {"resumed": "step-00000012", "history": epochs}
    for key in ("best", "weights_sha256", "examined"):
        assert reports[1][key] == last[key]
    assert reports[1]["history"] == []


def test_what_a_worker_would_refuse_to_build_is_refused_on_the_driver(tmp_path):
    first = torch.zeros(2, 3), torch.zeros(2, 1)

    def refusal(**settings):
        job = job_of(tmp_path, {key.replace("__", "."): value for key, value in settings.items()})
        with pytest.raises(ConfigError) as refused:
            rehearse(job.experiment, job.plan, job.data, None, *first)
        return str(refused.value)

    mlp = {"_target_": "models.mlp.MLP", "in_features": None, "out_features": None, "hidden": 128}
    assert refusal(model__target=mlp).startswith(
        "model=models.mlp.MLP: TypeError: 'int' object is not iterable ("
    )
    sizes = {"in_features": 3, "out_features": 1}
    assert refusal(model__target={"_target_": "torch.nn.Linear", **sizes, "dtype": torch.bfloat16}) == (
        "model=torch.nn.Linear: weight is bfloat16, which Gloo cannot average on CPUs; type trainer.precision=bf16, "
        "which computes in bfloat16 and keeps float32 weights"
    )
    synchronised = {"_target_": "torch.nn.SyncBatchNorm", "num_features": 3}
    assert "needs torch.distributed" in refusal(model__target=synchronised)
    assert refusal(model__target={"_target_": "builtins.dict"}) == (
        "model._target_=builtins.dict: gives a dict, a torch.nn.Module is needed"
    )
    rules = [{"match": "head", "lr": 0.1}]
    assert refusal(optimizer__param_groups=rules).startswith("optimizer.param_groups[0]=")
