"""What a training takes, in exact bytes, and what is typed where there is not enough."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from runner import memory, preflight
from runner.errors import PreflightError
from runner.executor_schema import ExecutorName
from runner.memory import GB, MB, Footprint, Needs
from runner.plan import DataFacts, make_plan
from runner.rehearsal import Saved, footprint, weights_alone
from runner.resources import Machine, plan_resources
from tests.fakes import LAPTOP, make_experiment

MODEL = Footprint(weights=100 * MB, gradients=80 * MB, row=MB)
FACTS = DataFacts(train_rows=100, val_rows=10, input_shape=(8,), out_features=1)
SGD = {"optimizer.target": {"_target_": "torch.optim.SGD"}}


def planned(settings):
    experiment = make_experiment(settings)
    return experiment, make_plan(experiment, FACTS, plan_resources(experiment, LAPTOP))


def test_the_footprint_of_a_linear_layer():
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU())
    model[0].bias.requires_grad_(False)
    inputs = torch.zeros(16, 8)
    saved = Saved(model)
    with saved.counting():
        model(inputs)
    # Linear keeps its inputs, ReLU its outputs; the weights are the model's own.
    assert saved.bytes == 16 * 8 * 4 + 16 * 4 * 4
    assert footprint(model, 16, saved.bytes, inputs) == Footprint(
        weights=(8 * 4 + 4) * 4, gradients=8 * 4 * 4, row=(8 + 4 + 8) * 4
    )


def test_weights_are_counted_without_being_made():
    found = weights_alone(lambda: nn.Linear(10**6, 10**6))
    assert found == Footprint(weights=4 * (10**12 + 10**6), gradients=4 * (10**12 + 10**6), row=0)


def test_a_model_that_cannot_be_made_without_memory_is_not_counted():
    assert weights_alone(lambda: nn.Linear(2, int(torch.ones(1).item()))) is None


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (SGD, 0),
        ({"optimizer.target": {"_target_": "torch.optim.SGD", "momentum": 0.9}}, 80),
        ({"optimizer.target": {"_target_": "torch.optim.AdamW"}}, 160),
        ({**SGD, "trainer.ema_decay": 0.9}, 100),
    ],
)
def test_needs_of_a_training(settings, state):
    settings = {**settings, "scaling.num_workers": 2, "trainer.batch_size": 16}
    experiment, plan = planned({**settings, "checkpoint.keep": 3, "checkpoint.keep_best": 1})
    assert memory.state_bytes(experiment, MODEL) == state * MB
    each = (
        340 + 100 + 80 + 80 + state + 16 * 1
    )  # the process, weights, gradients, those fused, the state, a batch
    needs = memory.machine_needs(experiment, plan, MODEL, 7 * MB)
    assert needs.total() == (800 + 200 + 2 * (100 + state) + 7 + 2 * each) * MB
    assert needs.total(parts=4) == needs.total() - 2 * 12 * MB
    assert needs.total(workers=1) == needs.total() - each * MB
    assert memory.kept_bytes(experiment, MODEL) == (3 + 1 + 1) * (100 + state) * MB


def test_without_ray_each_worker_has_the_arrays():
    experiment, plan = planned({**SGD, "scaling.num_workers": 2})
    once = memory.machine_needs(experiment, plan, MODEL, 7 * MB)
    experiment.executor.name = ExecutorName.horovodrun
    each = memory.machine_needs(experiment, plan, MODEL, 7 * MB)
    assert (once.shared - each.shared, each.fixed - once.fixed) == (800 * MB + 7 * MB, 7 * MB)


def test_without_checkpoints_none_are_copied_or_kept():
    experiment, plan = planned({**SGD, "checkpoint.enabled": False, "scaling.num_workers": 1})
    assert memory.kept_bytes(experiment, MODEL) == 0
    assert memory.machine_needs(experiment, plan, MODEL, 0).shared == 1000 * MB


def test_what_does_not_fit_is_refused_with_what_does():
    experiment, plan = planned({**SGD, "scaling.num_workers": 2, "trainer.batch_size": 16})
    large = Footprint(weights=MB, gradients=MB, row=100 * MB)
    machine = Machine(cpus=2, memory=3 * GB)
    with pytest.raises(PreflightError) as refused:
        preflight.check_memory(experiment, plan, 0, machine, large)
    assert str(refused.value) == (
        "trainer.batch_size=16: about 4.9 GB of memory for 2 workers, this machine has 3.0 GB free; "
        "type trainer.batch_size=4 trainer.accumulation_steps=4 or scaling.num_workers=1 or skip_checks=[memory] to try it "
        "all the same"
    )
    machine = Machine(cpus=2, memory=4 * GB)
    with pytest.raises(
        PreflightError, match=r"trainer\.accumulation_steps=2 or scaling\.num_workers=1 or skip_checks"
    ):
        preflight.check_memory(experiment, plan, 0, machine, large)
    fitting, plan = planned(
        {**SGD, "scaling.num_workers": 2, "trainer.batch_size": 4, "trainer.accumulation_steps": 4}
    )
    assert preflight.check_memory(fitting, plan, 0, Machine(cpus=2, memory=3 * GB), large) == (
        "about 2.5 GB of memory for 2 workers, 3.0 GB are free"
    )


def test_a_gpu_has_memory_of_its_own():
    settings = {
        **SGD,
        "scaling.num_workers": 2,
        "trainer.batch_size": 16,
        "scaling.resources_per_worker.GPU": 0.5,
    }
    experiment = make_experiment(settings)
    machine = Machine(cpus=8, gpus=1, horovod_gpu=True, memory=3 * GB, gpu_memory=GB)
    plan = make_plan(experiment, FACTS, plan_resources(experiment, machine))
    assert preflight.check_memory(experiment, plan, 0, machine, MODEL) == (
        "about 1.9 GB of memory for 2 workers, 3.0 GB are free; about 276 MB of GPU memory for 1 worker, 500 MB are free"
    )
    with pytest.raises(
        PreflightError, match=r"530 MB of GPU memory for 1 worker, its share of a GPU has 500 MB free"
    ):
        preflight.check_memory(experiment, plan, 0, machine, Footprint(200 * MB, 180 * MB, MB))


def test_checkpoints_that_do_not_fit_the_disk_are_refused(tmp_path, monkeypatch):
    experiment, _ = planned({**SGD, "checkpoint.keep": 5})
    free = SimpleNamespace(free=500 * MB)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: {tmp_path: free}[path])
    folder = tmp_path / "not" / "there"
    with pytest.raises(PreflightError) as refused:
        preflight.check_disk(experiment, MODEL, folder)
    assert str(refused.value) == (
        f"hydra.run.dir={folder}: the checkpoints that are kept need about 700 MB, 500 MB are free there; "
        "type checkpoint.keep=2 checkpoint.keep_best=0 or hydra.run.dir=… on a larger disk"
    )
    assert preflight.check_disk(experiment, Footprint(MB, MB, 1), folder) == (
        f"checkpoints need about 7 MB, 500 MB are free in {tmp_path}"
    )


@pytest.mark.parametrize(
    ("limit", "free"), [("max", 50 * GB), (f"{10 * GB}", 7 * GB), (f"{100 * GB}", 50 * GB), (None, 50 * GB)]
)
def test_free_memory_is_that_of_the_machine_within_the_container(tmp_path, monkeypatch, limit, free):
    monkeypatch.setattr(preflight, "CGROUP", tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=50 * GB))
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(f"{4 * GB}\n")
        (tmp_path / "memory.stat").write_text(f"anon {3 * GB}\ninactive_file {GB}\n")
    assert preflight.free_bytes() == free


def test_needs_round_a_part_up():
    assert Needs(shared=1, fixed=10, row=100, rows=5, workers=3).total(parts=2) == 1 + 3 * (10 + 300)


@pytest.mark.parametrize(
    ("free", "together"),
    [
        (1_000 * MB + 3 * (200 * MB + 2 * 340 * MB), 3),
        (1_000 * MB + 3 * (200 * MB + 2 * 340 * MB) - 1, 2),
        (0, 1),  # preflight's concern
    ],
)
def test_how_many_trainings_fit_beside_each_other(free, together):
    data = 200 * MB  # there once, as Ray is
    needs = Needs(shared=memory.RAY + memory.RANK_0 + data, fixed=memory.WORKER, row=0, rows=0, workers=2)
    assert memory.fitting(needs, data, free) == together
