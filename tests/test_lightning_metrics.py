"""torchmetrics that a module owns and logs: over the rows of all ranks, and none that does not count."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from torchmetrics import MetricCollection, Recall, SumMetric
from torchmetrics.classification import BinaryAveragePrecision, BinaryPrecisionRecallCurve, MulticlassF1Score

from runner.communicator import SingleProcess
from runner.errors import TrainingError
from runner.lightning import LightningObjective
from runner.lightning.metric_states import restore, states
from tests.fakes import on_ranks
from tests.lightning_modules import Told
from tests.test_lightning_log import train


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


def test_a_metric_that_no_rank_updated_is_not_a_number():
    model = Told(lambda model, values: model.log("train_total", model.total))
    model.total = SumMetric()
    objective = LightningObjective(model)
    train(objective, model, 1.0, 2.0)
    assert objective.logged(SingleProcess()) == {"train/total": pytest.approx(float("nan"), nan_ok=True)}


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


class Unjoinable(Told):
    def __init__(self):
        super().__init__(lambda model, values: model.log("x", model.items))
        self.items = BinaryPrecisionRecallCurve()
        self.items.add_state("pieces", [], dist_reduce_fx=None)


def test_a_metric_whose_lists_ranks_cannot_join_is_an_error():
    model = Unjoinable()
    objective = LightningObjective(model)
    train(objective, model, 1.0, 2.0)
    with pytest.raises(TrainingError, match="keeps a list pieces without dist_reduce_fx"):
        objective.logged(SingleProcess())
