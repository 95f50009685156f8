"""A training that goes on from any of its steps, in fresh objects, ends bit for bit as it would have."""

import dataclasses
import os
import re

import pytest
import torch

from runner import checkpoint, rank_state
from runner.checkpoint import STATE, CheckpointError
from runner.plan import Position
from runner.saving import resume
from runner.schema import Interval, OnNonfinite, Precision
from tests.goings_on import SEED, Case, commit, end
from tests.lockstep import in_lockstep

GLOBAL_BATCH = 12
SGD = {"_target_": "torch.optim.SGD", "momentum": 0.9}
ADAMW = {"_target_": "torch.optim.AdamW", "weight_decay": 0.1}
MLP = {"_target_": "models.mlp.MLP", "in_features": None, "out_features": None, "hidden": [3]}
NORMED = {"_target_": "tests.goings_on.Normed", "in_features": None, "out_features": None}
EVERY_STEP = {"trainer.validate_every_steps": 1}


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """Hundreds of checkpoints that need not outlive a power cut; the tests of checkpoint.py are of that."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


def case_of(workers, settings, accumulation=1, rows=32, damaged=None):
    """Three steps an epoch, of the same global batch at any number of workers."""
    sizes = {
        "trainer.epochs": 2,
        "trainer.batch_size": GLOBAL_BATCH // workers // accumulation,
        "trainer.accumulation_steps": accumulation,
        "lr_scaling.base_batch_size": GLOBAL_BATCH,
        "checkpoint.every_steps": 1,
    }
    return Case({**sizes, **settings}, workers, rows, damaged=damaged)


def scheduler(name, **arguments):
    return {"scheduler.target": {"_target_": f"torch.optim.lr_scheduler.{name}", **arguments}}


CASES = {
    "SGD with momentum": [{"optimizer.target": SGD}],
    "AdamW, cosine and warm-up": [
        {
            "optimizer.target": ADAMW,
            "scheduler.warmup_steps": 2,
            **scheduler("CosineAnnealingLR", T_max=None),
        }
    ],
    "one cycle": [{"optimizer.target": SGD, **scheduler("OneCycleLR", max_lr=None, total_steps=None)}],
    "step by epoch": [{**scheduler("StepLR", step_size=1, gamma=0.5), "scheduler.interval": Interval.epoch}],
    "plateau": [{**EVERY_STEP, **scheduler("ReduceLROnPlateau", factor=0.5, patience=0, threshold=0.5)}],
    "moving average": [{"trainer.ema_decay": 0.5, "model.target": MLP}],
    "moving average of batch norm": [{"trainer.ema_decay": 0.5, "model.target": NORMED}],
    "dropout": [{"model.target": {**MLP, "dropout": 0.5}, "optimizer.target": SGD}],
    "batch norm": [{"model.target": NORMED}],
    "accumulation": [{"model.target": MLP}, 2],
    "last batch of a single row": [{}, 1, 25],
    "last batch dropped": [{"dataset.drop_last": True}, 1, 47],
    "validations by steps": [{"trainer.validate_every_steps": 2}],
    "validations by epochs": [{"trainer.validate_every_epochs": 2}],
    "patience that ends": [{**EVERY_STEP, "trainer.patience": 2, "trainer.min_delta": 5.0}],
    "steps that end within an epoch": [{"trainer.max_steps": 5}],
    "float16": [{"trainer.precision": Precision.fp16}],
    "clipped, with norms": [{"trainer.clip_norm": 1.0, "trainer.log_norms": True}],
    "AdaScale": [
        {
            "lr_scaling.target": {"_target_": "runner.lr_scaling.adascale"},
            "lr_scaling.base_batch_size": None,
            "scheduler.warmup_steps": 2,
            **scheduler("CosineAnnealingLR", T_max=None),
        },
        2,
    ],
    "a step left out": [
        {
            "trainer.on_nonfinite": OnNonfinite.skip,
            "trainer.log_norms": True,
            "model.target": NORMED,
            "trainer.ema_decay": 0.5,
        },
        1,
        32,
        7,
    ],
}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_training_that_goes_on_from_any_step_ends_as_it_would_have(name, workers, tmp_path):
    case = case_of(workers, *CASES[name])
    whole, snapshots = case.trained()
    without, none = case.with_settings(checkpoint__enabled=False).trained()
    assert (without, none) == (whole, [])  # to copy it does not disturb it
    steps = [int(taken.name.removeprefix("step-")) for taken in snapshots]
    assert steps == list(range(1, case.plan.total_steps + 1))[: len(steps)]
    assert snapshots[-1].state["train_state"]["stopped"] or snapshots[-1].state["train_state"]["ended"]
    for taken in snapshots:
        assert case.resumed(commit(tmp_path, taken)) == whole, taken.name


SHOWN = {  # of the last snapshot's state and all ranks' ends: that the case is what it is called
    "plateau": lambda state, ends: state["optimizer"]["param_groups"][0]["lr"] < 0.1,
    "batch norm": lambda state, ends: ends[0]["rank"]["buffers"] != ends[1]["rank"]["buffers"],
    "dropout": lambda state, ends: ends[0]["random"]["torch"] != ends[1]["random"]["torch"],
    "patience that ends": lambda state, ends: state["train_state"]["stopped"],
    "float16": lambda state, ends: state["scaler"]["scale"] > 1,
    "AdaScale": lambda state, ends: state["adascale"]["steps"] > 1 and state["train_state"]["gained"] > 1,
    "a step left out": lambda state, ends: b"skipped_steps" in state["history"].numpy().tobytes(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_the_cases_are_what_they_are_called(name):
    ends, snapshots = case_of(2, *CASES[name]).trained()
    assert SHOWN[name](snapshots[-1].state, ends)


# Longer than it was meant to be


def test_more_epochs_are_those_of_a_training_that_always_had_them(tmp_path):
    case = case_of(2, {"optimizer.target": ADAMW})
    longer = case.with_settings(trainer__epochs=4)
    _, snapshots = case.trained()
    position = Position(epoch=2, step=6)
    found = dataclasses.replace(longer, position=position).resumed(commit(tmp_path, snapshots[-1]))
    whole, _ = longer.trained()
    for ended in (*found, *whole):
        del ended["learner"]["schedule"]["lengths"]["total_steps"]
    assert found == whole


def test_more_patience_goes_on_where_less_had_stopped(tmp_path):
    case = case_of(2, *CASES["patience that ends"])
    ended, snapshots = case.trained()
    assert len(snapshots) < case.plan.total_steps
    patient = case.with_settings(trainer__patience=4)
    whole, _ = patient.trained()
    assert patient.resumed(commit(tmp_path, snapshots[-1])) == whole != ended


# What there is to go on from


@pytest.fixture(scope="module")
def begun():
    case = case_of(2, {"optimizer.target": SGD})
    return case, *case.trained()


def put(root, snapshots):
    for taken in snapshots:
        checkpoint.commit(root, taken.name, taken.weights, taken.state, taken.facts)


def damage(root, number):
    file = root / f"step-{number:08d}" / STATE
    file.write_bytes(file.read_bytes()[:-1])


def test_the_newest_is_taken_and_where_it_is_damaged_the_one_before(begun, tmp_path, capsys):
    case, whole, snapshots = begun
    put(tmp_path, snapshots[:4])
    names = in_lockstep(2, lambda c: resume(case.begin(c)[0], tmp_path, c, SEED))
    assert names == ["step-00000004"] * 2
    damage(tmp_path, 4)
    assert case.resumed(tmp_path) == whole
    assert capsys.readouterr().out.endswith("; falling back to step-00000003\n")


def test_where_all_are_damaged_nothing_is_begun_anew(begun, tmp_path):
    case, _, snapshots = begun
    put(tmp_path, snapshots[:2])
    for number in (1, 2):
        damage(tmp_path, number)
    with pytest.raises(CheckpointError) as raised:
        case.resumed(tmp_path)
    assert str(raised.value) == (f"{tmp_path}: none of its checkpoints is whole; the lines above say why")


def test_where_there_is_none_the_training_stays_as_it_is(begun, tmp_path):
    case, whole, _ = begun
    assert case.resumed(tmp_path) == whole


def test_what_was_uploaded_is_taken_where_the_folder_has_none(begun, tmp_path, capsys):
    case, whole, snapshots = begun
    there, empty = tmp_path / "fetched", tmp_path / "empty"
    put(there, snapshots[:3])
    damage(there, 3)
    order = [there / f"step-{number:08d}" for number in (3, 2, 1)]

    def rank(communicator):
        training, ingest = case.begin(communicator)
        name = resume(training, empty, communicator, SEED, lambda: order)
        case.go(training, ingest, communicator)
        return name, end(training)

    assert in_lockstep(2, rank) == [("step-00000002", ended) for ended in whole]
    assert "step-00000003" in capsys.readouterr().out

    def nothing_uploaded():
        raise AssertionError("asked, though the folder has one")

    put(empty, snapshots[:1])
    names = in_lockstep(2, lambda c: resume(case.begin(c)[0], empty, c, SEED, nothing_uploaded))
    assert names == ["step-00000001"] * 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model.target": {**MLP, "hidden": [3]}}, "size mismatch"),
        ({"model.target": {**MLP, "hidden": [4, 4]}}, r"Missing key\(s\)"),
        ({"optimizer.param_groups": [{"match": "bias", "lr": 0.2}]}, "parameter group"),
    ],
)
def test_a_checkpoint_of_another_model_or_optimizer_is_refused_in_a_line(begun, tmp_path, settings, reason):
    case, _, snapshots = begun
    put(tmp_path, snapshots[:1])
    other = dataclasses.replace(case, settings={**case.settings, **settings})
    with pytest.raises(CheckpointError) as raised:
        other.resumed(tmp_path)
    path = re.escape(str(tmp_path / "step-00000001"))
    assert re.fullmatch(
        rf"{path}: is of another model or optimizer \([^\n]*({reason})[^\n]*\)", str(raised.value)
    )


def test_a_snapshot_is_not_changed_by_what_follows_it(begun):
    """They were all taken from one training; each still says its own step."""
    _, _, snapshots = begun
    weights = {taken.weights["layers.1.weight"].numpy().tobytes() for taken in snapshots}
    momenta = [taken.state["optimizer"]["state"][0]["momentum_buffer"] for taken in snapshots]
    assert len(weights) == len({each.numpy().tobytes() for each in momenta}) == len(snapshots) == 6
    assert [taken.state["train_state"]["step"] for taken in snapshots] == [1, 2, 3, 4, 5, 6]
    assert [taken.facts["rows"] for taken in snapshots] == [12, 24, 0, 12, 24, 0]
    assert all(
        torch.equal(rank_state.unpacked(taken.state["ranks"][0])["stretch"]["loss"], torch.zeros(3).double())
        for taken in snapshots[2::3]
    )
