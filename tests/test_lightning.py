"""LightningModules through the whole loop on 1 to 3 ranks, against plain torch."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from torch.nn import functional
from torch.optim import SGD, lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from runner import build, lightning
from runner.ingest.batches import Place
from runner.ingest.rows import Arrays
from runner.ingest.sampler import epoch_order
from runner.ingest.tensors import TensorIngest
from runner.learner import build_learner
from runner.loop import fit
from runner.plan import DataFacts, make_plan
from runner.resources import ResourcePlan
from runner.schema import Precision, Task
from runner.train_state import Stretch, TrainState
from tests.fakes import make_experiment, on_ranks
from tests.lightning_modules import FORMS, LR, Digits, Duck, Net, Plateau, Trainer, node, nothing

CPU = torch.device("cpu")
MULTIPLIER, GLOBAL_BATCH, EPOCHS, SEED = 2.0, 24, 3, 7
ROWS, VAL_ROWS = 53, 10  # the last batch has 5 rows: with (3, 4, 2) one micro-batch is a filler
STEPS_PER_EPOCH = 3
LAYOUTS = [(1, 24, 1), (2, 12, 1), (3, 8, 1), (2, 6, 2), (3, 4, 2)]


def digits(dtype=np.float64):
    inputs, labels = load_digits(return_X_y=True)
    inputs = (inputs / 16).astype(dtype)
    end = ROWS + VAL_ROWS
    return {"train": (inputs[:ROWS], labels[:ROWS]), "val": (inputs[ROWS:end], labels[ROWS:end])}


def trained(model, layout, precision=Precision.float64, val_rows=VAL_ROWS, **settings):
    """Each rank's (weights, metrics of all epochs, learner)."""
    workers, batch, accumulation = layout
    experiment = make_experiment(
        {
            "model.target": model,
            "dataset.task": Task.classification,
            "scaling.num_workers": workers,
            "lr_scaling.base_batch_size": int(GLOBAL_BATCH / MULTIPLIER),
            "trainer.batch_size": batch,
            "trainer.accumulation_steps": accumulation,
            "trainer.epochs": EPOCHS,
            "trainer.precision": precision,
            **settings,
        }
    )
    splits = digits(np.float64 if precision is Precision.float64 else np.float32)
    splits["val"] = tuple(column[:val_rows] for column in splits["val"])
    rows = {name: Arrays(*columns) for name, columns in splits.items()}
    facts = DataFacts(ROWS, val_rows, (64,), 10)
    plan = make_plan(experiment, facts, ResourcePlan(workers, 0.5, 0.0))
    assert (plan.learning_rate.multiplier, plan.steps_per_epoch) == (MULTIPLIER, STEPS_PER_EPOCH)

    def rank(communicator):
        learner = build_learner(experiment, plan, facts, communicator, CPU)
        ingest = TensorIngest(rows, plan, SEED, communicator.rank, Place(CPU))
        moments = fit(TrainState(), Stretch(), plan, learner, ingest, communicator)
        metrics = [moment.metrics for moment in moments]
        return dict(learner.model.state_dict()), metrics, learner

    return on_ranks(workers, rank)


def in_torch(configured):
    """Weights of a plain loop over whole global batches, its LR a step, and validation losses; configured(parameters)
    gives an optimizer and what to call after each step and after each epoch, with the validation loss."""
    model = Net().double()
    optimizer, after_step, after_epoch = configured(list(model.parameters()))
    splits = {name: [torch.from_numpy(column) for column in split] for name, split in digits().items()}
    inputs, labels = splits["train"]
    rates, losses = [], []
    for epoch in range(EPOCHS):
        order = epoch_order(ROWS, SEED, epoch)
        for start in range(0, ROWS, GLOBAL_BATCH):
            rows = order[start : start + GLOBAL_BATCH]
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            after_step()
        losses.append(functional.cross_entropy(model(splits["val"][0]), splits["val"][1]).item())
        after_epoch(losses[-1])
    return model.state_dict(), rates, losses


def formed(form):
    """The form's optimizer and scheduler as `in_torch` takes them, built from the scaled LR."""

    def configured(parameters):
        choice = FORMS[form](parameters, LR * MULTIPLIER)
        if isinstance(choice, dict):
            choice = ([choice["optimizer"]], [choice["lr_scheduler"]])
        if not isinstance(choice, tuple):
            return choice[0] if isinstance(choice, list) else choice, nothing, nothing
        ((optimizer,), (scheduler,)) = choice
        by_step = isinstance(scheduler, dict)
        step = (scheduler["scheduler"] if by_step else scheduler).step
        return optimizer, step if by_step else nothing, nothing if by_step else lambda _: step()

    return configured


def assert_close(found, expected, tolerance=1e-12):
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_any_number_of_ranks_trains_a_module_as_a_plain_loop_does(form, layout):
    expected, rates, losses = in_torch(formed(form))
    for found, metrics, _ in trained(node(Digits, form=form), layout):
        assert_close(found, expected)
        assert [epoch["val/loss"] for epoch in metrics] == pytest.approx(losses, abs=1e-12)
        assert [epoch["lr"] for epoch in metrics] == pytest.approx(rates[2::3], abs=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_a_plateau_follows_the_validation_of_all_ranks(layout):
    def configured(parameters):
        optimizer = SGD(parameters, LR * MULTIPLIER)
        scheduler = lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.1, patience=0, threshold=0.2, min_lr=0.02 * MULTIPLIER
        )
        return optimizer, nothing, scheduler.step

    expected, rates, _ = in_torch(configured)
    assert rates == [0.1] * 6 + [0.04] * 3  # the bound is scaled too
    for found, metrics, _ in trained(node(Plateau), layout):
        assert_close(found, expected)
        assert [epoch["lr"] for epoch in metrics] == [0.1, 0.1, 0.04]


@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [(Precision.float64, 1e-12), (Precision.float32, 1e-6)], ids=["64", "32"]
)
def test_a_module_trains_as_the_same_layers_and_optimizer_of_the_config(layout, precision, tolerance):
    by_config = {
        "optimizer.lr": LR,
        "optimizer.target": {"_target_": "torch.optim.SGD", "momentum": 0.9},
    }
    ((expected, history, _),) = trained(node(Net), LAYOUTS[0], precision, **by_config)
    for found, metrics, _ in trained(node(Digits), layout, precision):
        assert_close(found, expected, tolerance)
        for epoch, wanted in zip(metrics, history, strict=True):
            assert epoch["train/loss"] == pytest.approx(wanted["train/loss"], abs=tolerance)
            assert epoch["val/acc"] == pytest.approx(wanted["val/accuracy"], abs=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_a_class_without_lightning_trains_and_is_validated_by_its_training_loss(layout):
    expected, _, losses = in_torch(formed("an optimizer"))
    for found, metrics, _ in trained(node(Duck), layout):
        assert_close(found, expected)
        assert [epoch["val/loss"] for epoch in metrics] == pytest.approx(losses, abs=1e-12)


@pytest.mark.parametrize("val_rows", [10, 1])  # of one row, rank 0 of three has none
@pytest.mark.parametrize("layout", LAYOUTS)
def test_validation_logs_are_of_all_rows_once(layout, val_rows):
    inputs, labels = (column[:val_rows] for column in digits()["val"])
    for weights, metrics, _ in trained(node(Digits), layout, val_rows=val_rows):
        model = Net().double()
        model.load_state_dict(weights)
        predicted = model(torch.from_numpy(inputs)).argmax(dim=1).numpy()
        assert metrics[-1]["val/acc"] == pytest.approx((predicted == labels).mean(), abs=1e-15)
        assert metrics[-1]["val/f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), abs=1e-7)
        assert {name for name in metrics[-1] if name.startswith("val/")} == {"val/acc", "val/f1", "val/loss"}


def test_the_moving_average_is_evaluated_with_its_own_metrics():
    average = {"trainer.ema_decay": 0.9}
    ((_, expected, _),) = trained(node(Digits), LAYOUTS[0], **average)
    for _, metrics, learner in trained(node(Digits), LAYOUTS[2], **average):
        assert metrics[-1]["val/loss"] == pytest.approx(expected[-1]["val/loss"], abs=1e-12)
        assert metrics[-1]["val/f1"] == expected[-1]["val/f1"]
        assert (
            pickle.loads(pickle.dumps(learner.evaluated_model())).state_dict().keys()
            == learner.model.state_dict().keys()
        )


def test_the_example_of_the_documentation_trains(monkeypatch, tmp_path):
    page = Path(__file__).parents[1] / "docs" / "lightning.md"
    code = re.search("```python\n(.*?)```", page.read_text(), re.DOTALL)[1]
    (tmp_path / "lit_digits.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    lightning.check(build.locate("lit_digits.LitDigits")(64, 10), "val/f1")
    target = {"_target_": "lit_digits.LitDigits", "in_features": None, "out_features": None}
    found = trained(target, LAYOUTS[1])
    assert [set(metrics[-1]) & {"val/loss", "val/f1"} for _, metrics, _ in found] == [
        {"val/loss", "val/f1"}
    ] * 2
    assert found[0][1][0]["lr"] == 0.1 * MULTIPLIER


@pytest.mark.filterwarnings("ignore")  # the Trainer's own, and what torch deprecates under it
@pytest.mark.parametrize("form", ["two lists, by epoch", "two lists and a dict, by step"])
def test_lightning_s_own_trainer_comes_to_the_same_numbers(form):
    splits = {name: [torch.from_numpy(column) for column in split] for name, split in digits().items()}
    model = Digits(form, lr=LR * MULTIPLIER).double()
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = Trainer(
        accelerator="cpu", max_epochs=EPOCHS, num_sanity_val_steps=0, **dict.fromkeys(silent, False)
    )
    trainer.fit(model, Epochs(splits["train"]), DataLoader(TensorDataset(*splits["val"]), VAL_ROWS))
    theirs = {name: float(trainer.callback_metrics[name]) for name in ("val_loss", "val_acc", "val/f1")}
    for found, metrics, _ in trained(node(Digits, form=form), LAYOUTS[2]):
        assert_close(found, model.state_dict())
        assert [metrics[-1][f"val/{name}"] for name in ("loss", "acc", "f1")] == pytest.approx(
            list(theirs.values()), abs=1e-7
        )


class Epochs:
    """Global batches in the sampler's order; a DataLoader to Lightning."""

    def __init__(self, columns):
        self.columns, self.epoch = columns, 0

    def __len__(self):
        return STEPS_PER_EPOCH

    def __iter__(self):
        order = epoch_order(ROWS, SEED, self.epoch)
        self.epoch += 1
        for rows in order.split(GLOBAL_BATCH):
            yield tuple(column[rows] for column in self.columns)
