"""What a module's steps return and log, a call at a time."""

import pytest
import torch
from torchmetrics.classification import (
    MulticlassAccuracy,
)

from runner.communicator import SingleProcess
from runner.errors import TrainingError
from runner.lightning import LightningObjective
from runner.lightning.log import captured
from tests.fakes import on_ranks
from tests.lightning_modules import LR, Digits, LightningModule, Told, nothing
from tests.test_lightning import digits


def column(*values):
    return torch.tensor(values, dtype=torch.float64), torch.zeros(len(values))


def train(objective, model, *values, counted=True):
    losses = objective.losses(model, *column(*values))
    if counted:
        objective.weights(losses)
    return losses


def logs_of(tell, shares):
    """What ranks log whose training batches are `shares`: [[batch of values, …] a rank]; equal on all."""

    def rank(communicator):
        model = Told(tell)
        objective = LightningObjective(model)
        for values in shares[communicator.rank]:
            train(objective, model, *values)
        first, second = objective.logged(communicator), objective.logged(communicator)
        assert second == {}
        return first

    found = on_ranks(len(shares), rank)
    assert found == [found[0]] * len(shares)
    return found[0]


SHARES = [[], [[1.0, 2.0, 6.0], [10.0]], [[5.0, 7.0]]]  # values of three ranks' batches


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 31 / 6),  # a mean over the rows
        ({"reduce_fx": "sum"}, 3 + 10 + 6),  # of the batches' means
        ({"reduce_fx": torch.min}, 3.0),
        ({"reduce_fx": "max", "on_step": True, "on_epoch": True, "prog_bar": True}, 10.0),
        ({"batch_size": 1, "logger": False, "sync_dist": True, "rank_zero_only": True}, 19 / 3),
    ],
)
def test_a_log_is_reduced_over_rows_batches_and_ranks(options, expected):
    found = logs_of(lambda model, values: model.log("train_x", values.mean(), **options), SHARES)
    assert found == {"train/x": pytest.approx(expected, abs=1e-15)}


def test_train_loss_is_left_to_the_loop_and_prefixes_are_one_name():
    def tell(model, values):
        model.log_dict(
            {"train_loss": values.mean(), "training/a": 1, "b": torch.tensor([2.0]), "val_c": True}
        )

    assert logs_of(tell, SHARES) == {"train/a": 1.0, "train/b": 2.0, "train/val_c": 1.0}


def test_a_name_that_only_some_batches_log_counts_their_rows():
    def tell(model, values):
        if values[0] > 4:
            model.log("large", values.mean())

    assert logs_of(tell, SHARES) == {"train/large": pytest.approx(22 / 3, abs=1e-15)}


def test_a_batch_that_does_not_count_leaves_no_log_and_no_metric():
    model = Digits().double()
    objective = LightningObjective(model)
    images, labels = (torch.from_numpy(column) for column in digits()["train"])
    predicted = model(images[:8]).argmax(dim=1)
    wrong = int((predicted != labels[:8]).nonzero()[0])
    for rows, counted in ((slice(0, 8), True), (slice(wrong, wrong + 1), False)):
        losses = objective.losses(model, images[rows], labels[rows])
        if counted:
            objective.weights(labels[rows])
    assert losses.shape == (1,)
    accuracy = float((predicted == labels[:8]).double().mean())
    found = objective.logged(SingleProcess())
    assert found == {"train/rows": 8.0, "train/acc": pytest.approx(accuracy, abs=1e-7)}
    assert model.train_acc.update_count == 0


def test_a_validation_loss_is_what_is_returned_unless_one_is_logged():
    for tell, expected in ((nothing, 2.0), (lambda model, _: model.log("val/loss", 5.0), 5.0)):
        model = Told(tell, lambda loss: {"loss": loss})
        objective = LightningObjective(model)
        assert objective.measure(model, *column(1.0, 3.0)).tolist() == [0.0]
        assert objective.metrics(torch.zeros(1), SingleProcess()) == {"loss": expected}


def test_without_a_validation_step_validation_leaves_training_s_logs_and_metrics_alone():
    class Unvalidated(Digits):
        validation_step = None

    model = Unvalidated().double()
    objective = LightningObjective(model)
    images, labels = (torch.from_numpy(column) for column in digits()["train"])
    loss = objective.measure(model, images, labels)
    assert loss.tolist() == [0.0]
    assert model.train_acc.update_count == 0
    assert int(model.train_acc.tp) == 0
    expected = torch.nn.functional.cross_entropy(model(images), labels).item()
    assert objective.metrics(loss, SingleProcess()) == {"loss": pytest.approx(expected, abs=1e-15)}
    assert objective.logged(SingleProcess()) == {}


def test_batches_are_counted_from_zero_between_reports():
    model = Told()
    objective = LightningObjective(model)
    for _ in range(2):
        train(objective, model, 1.0)
        train(objective, model, 1.0)
        objective.measure(model, *column(1.0))
        objective.logged(SingleProcess())
        objective.metrics(torch.zeros(1), SingleProcess())
    assert model.seen == [0, 1, 0] * 2


def test_a_loss_becomes_one_for_each_row_with_the_mean_s_gradient():
    model = Told()
    losses = train(LightningObjective(model), model, 1.0, 2.0, 6.0)
    assert losses.tolist() == [3.0] * 3
    (losses.sum() / 3).backward()
    assert model.weight.grad.item() == 3.0


def test_outside_a_step_the_module_is_as_its_author_left_it():
    model = Digits()
    before = set(vars(model))
    with captured(model, 4) as entries:
        model.log("x", 1.0)
    assert [(entry.written, entry.kind, entry.value.item(), entry.weight) for entry in entries] == [
        ("x", "mean", 1.0, 4)
    ]
    assert set(vars(model)) == before
    assert model.log.__func__ is LightningModule.log
    assert (model.hparams.lr, model.current_epoch, model.global_step) == (LR, 0, 0)


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (lambda loss: None, "training_step returned None: a mean loss"),
        (lambda loss: {"log": loss}, "training_step returned a dict: a mean loss"),
        (lambda loss: loss.expand(3), "training_step returned a tensor (3,): a mean loss"),
    ],
)
def test_a_training_step_without_a_mean_loss_is_an_error(returned, line):
    model = Told(returned=returned)
    with pytest.raises(TrainingError) as raised:
        train(LightningObjective(model), model, 1.0, 2.0)
    assert str(raised.value).startswith(line)


@pytest.mark.parametrize(
    ("tell", "line"),
    [
        (
            lambda model, values: model.log("x", values),
            "self.log('x'): a tensor (2,) is no single number; log its mean or its parts",
        ),
        (
            lambda model, values: model.log("x", "high"),
            "self.log('x'): a str is no single number; log its mean or its parts",
        ),
        (
            lambda model, values: model.log("x", 1.0, reduce_fx=torch.median),
            "self.log('x', reduce_fx=median): one of mean, sum, min, max is needed",
        ),
        (
            lambda model, values: model.log_dict({"x": 1.0, "train_x": 2.0}),
            "self.log('train_x'): train/x is logged as 'x' too; give one of them another name",
        ),
        (
            lambda model, values: (model.log("x", 1.0), model.log("x", 1.0, reduce_fx="sum")),
            "self.log: train/x is logged in more than one way; choose one",
        ),
        (
            lambda model, values: model.log("x", MulticlassAccuracy(3)),
            "self.log('x'): the MulticlassAccuracy is no attribute of the module; set it in __init__",
        ),
    ],
)
def test_a_log_that_cannot_be_right_is_an_error(tell, line):
    with pytest.raises(TrainingError) as raised:
        logs_of(tell, [[[1.0, 2.0]]])
    assert str(raised.value) == line
