"""What a module's steps return and log, a call at a time."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torch import nn
from torch.optim import SGD
from torchmetrics import MetricCollection, Recall, SumMetric
from torchmetrics.classification import (
    BinaryAveragePrecision,
    BinaryPrecisionRecallCurve,
    MulticlassAccuracy,
    MulticlassF1Score,
)

from runner.communicator import SingleProcess
from runner.errors import TrainingError
from runner.lightning import LightningObjective
from runner.lightning.log import captured
from runner.lightning.metric_states import restore, states
from tests.fakes import on_ranks
from tests.lightning_modules import LR, Digits, LightningModule, nothing
from tests.test_lightning import digits


class Told(nn.Module):
    """Logs what it is told to; the loss is the mean of the inputs."""

    def __init__(self, tell=nothing, returned=lambda loss: loss):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.tell, self.returned, self.seen = tell, returned, []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch_idx)
        self.tell(self, batch[0])
        return self.returned(self.weight * batch[0].mean())

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)

    def configure_optimizers(self):
        return SGD(self.parameters(), LR)


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


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_collection_of_metrics_with_shared_states_is_of_all_ranks_rows_every_time(ranks):
    class Collected(Told):
        def __init__(self):
            super().__init__()
            self.scores = MetricCollection(
                {"f1": MulticlassF1Score(3, average="macro"), "recall": Recall("multiclass", num_classes=3)},
                prefix="val_",
            )

        def validation_step(self, batch):
            self.scores.update(*batch)
            self.log_dict(self.scores)

    draws = np.random.default_rng(0)
    predicted, labels = torch.from_numpy(draws.integers(0, 3, (2, 2, 13)))

    def rank(communicator):
        model = Collected()
        objective, found = LightningObjective(model), []
        for epoch in range(2):
            for row in range(communicator.rank, 13, ranks):
                here = (epoch, slice(row, row + 1))
                objective.measure(model, predicted[here], labels[here])
            found.append(objective.metrics(torch.zeros(1), communicator))
        return found

    for found in on_ranks(ranks, rank):
        for epoch in range(2):
            f1 = f1_score(labels[epoch], predicted[epoch], average="macro")
            assert found[epoch] == {
                "f1": pytest.approx(f1, abs=1e-7),
                "recall": pytest.approx((predicted[epoch] == labels[epoch]).double().mean().item(), abs=1e-7),
            }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_metric_that_keeps_rows_needs_none_on_every_rank(ranks):
    class Ranked(Told):
        def __init__(self):
            super().__init__()
            self.precision = BinaryAveragePrecision()

        def validation_step(self, batch):
            self.precision(*batch)
            self.log("val_precision", self.precision)

    draws = np.random.default_rng(0)
    scores, labels = draws.random(7), draws.integers(0, 2, 7)
    rows = torch.from_numpy(scores), torch.from_numpy(labels)

    def rank(communicator):
        model = Ranked()
        objective = LightningObjective(model)
        if communicator.rank == ranks - 1:
            objective.measure(model, rows[0][:5], rows[1][:5])
            objective.measure(model, rows[0][5:], rows[1][5:])
        return objective.metrics(torch.zeros(1), communicator)

    expected = pytest.approx(average_precision_score(labels, scores), abs=1e-7)
    assert on_ranks(ranks, rank) == [{"precision": expected}] * ranks


def test_restored_metrics_have_the_states_of_before():
    model = Told()
    model.total, model.precision = SumMetric(), BinaryAveragePrecision()
    model.total.update(2.0)
    model.precision.update(torch.tensor([0.1, 0.9]), torch.tensor([1, 0]))
    before = states(model)
    model.total.update(40.0)
    model.precision.update(torch.tensor([0.8]), torch.tensor([1]))
    assert (model.total.compute().item(), model.precision.compute().item()) == (42.0, pytest.approx(7 / 12))
    restore(before)
    assert (model.total.compute().item(), model.precision.compute().item()) == (2.0, 0.5)
    assert (model.total.update_count, model.precision.update_count) == (1, 1)


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


class Unjoinable(Told):
    def __init__(self):
        super().__init__(lambda model, values: model.log("x", model.items))
        self.items = BinaryPrecisionRecallCurve()
        self.items.add_state("pieces", [], dist_reduce_fx=None)


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


def test_a_metric_whose_lists_ranks_cannot_join_is_an_error():
    model = Unjoinable()
    objective = LightningObjective(model)
    train(objective, model, 1.0, 2.0)
    with pytest.raises(TrainingError, match="keeps a list pieces without dist_reduce_fx"):
        objective.logged(SingleProcess())
