"""A LightningModule goes on in mid-epoch: what it logs is that of a training that was never left."""

import io

import pytest
import torch
from torchmetrics import MeanMetric, MetricCollection, Recall
from torchmetrics.classification import BinaryAveragePrecision, MulticlassAccuracy, MulticlassF1Score

from runner import lightning
from runner.communicator import SingleProcess
from runner.errors import TrainingError
from runner.lightning import LightningObjective
from tests.fakes import on_ranks
from tests.lightning_modules import Digits, Told, nothing, with_methods
from tests.test_lightning_log import train

BATCHES = [[[1.0, 2.0, 6.0], [10.0], [4.0, 2.0]], [], [[5.0, 7.0], [3.0]]]  # of three ranks


class Measuring(Told):
    """Logs in all ways, with metrics of sums, of lists and of shared states."""

    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()
        self.precision = BinaryAveragePrecision()
        self.scores = MetricCollection(
            {"f1": MulticlassF1Score(3, average="macro"), "recall": Recall("multiclass", num_classes=3)}
        )

    def training_step(self, batch, batch_idx):
        values = batch[0]
        self.seen.append(batch_idx)
        self.mean.update(values)
        self.precision.update(values.float() / 10, (values > 3).long())
        self.scores.update(values.long() % 3, (values.long() * 2 + batch_idx) % 3)
        self.log("train_average", self.mean)
        self.log("precision", self.precision)
        self.log_dict(self.scores)
        for reduction in ("mean", "sum", "min", "max"):
            self.log(reduction, values.mean(), reduce_fx=reduction)
        return self.weight * values.mean()


def kept(objective):
    """The state as a checkpoint gives it back: loaded without unpickling code."""
    buffer = io.BytesIO()
    torch.save(objective.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_logs_are_those_of_a_training_that_was_never_left(left):
    def rank(communicator):
        mine = BATCHES[communicator.rank]
        whole, first = Measuring(), Measuring()
        objective, before = LightningObjective(whole), LightningObjective(first)
        for values in mine:
            train(objective, whole, *values)
        for values in mine[:left]:
            train(before, first, *values)
        second = Measuring()
        after = LightningObjective(second)
        after.load_state_dict(kept(before))
        for values in mine[left:]:
            train(after, second, *values)
        assert first.seen + second.seen == whole.seen
        return objective.logged(communicator), after.logged(communicator), after.logged(communicator)

    for expected, found, empty in on_ranks(3, rank):
        assert found == expected
        assert list(found) == list(expected)
        names = ("average", "mean", "f1", "recall", "precision", "sum", "min", "max")
        assert set(found) == {f"train/{name}" for name in names}
        assert empty == {}


def test_a_checkpoint_does_not_change_the_training_that_goes_on():
    model, other = Measuring(), Measuring()
    watched, free = LightningObjective(model), LightningObjective(other)
    for values in BATCHES[0]:
        train(watched, model, *values)
        kept(watched)
        train(free, other, *values)
    assert watched.logged(SingleProcess()) == free.logged(SingleProcess())


def test_what_was_kept_stays_as_it_was():
    model = Measuring()
    objective = LightningObjective(model)
    train(objective, model, 1.0, 2.0)
    state, at_once = objective.state_dict(), kept(objective)
    train(objective, model, 9.0)
    objective.logged(SingleProcess())
    assert str(state) == str(at_once)


def test_a_batch_that_does_not_count_is_not_kept():
    model = Measuring()
    objective = LightningObjective(model)
    train(objective, model, 1.0, 2.0)
    expected = kept(objective)
    train(objective, model, 9.0, counted=False)
    found = kept(objective)
    assert found.pop("trained") == expected.pop("trained") + 1
    assert str(found) == str(expected)


def test_two_names_for_one_are_found_after_a_resume_too():
    model = Told(lambda model, values: model.log("x" if values[0] < 2 else "train_x", 1.0))
    before, after = LightningObjective(model), LightningObjective(model)
    train(before, model, 1.0)
    after.load_state_dict(kept(before))
    with pytest.raises(TrainingError, match="train/x is logged as 'x' too"):
        train(after, model, 3.0)


def test_metrics_of_another_model_are_named():
    model, other = Measuring(), Told()
    other.mean, other.accuracy = MeanMetric(), MulticlassAccuracy(3)
    with pytest.raises(TrainingError) as refused:
        LightningObjective(other).load_state_dict(kept(LightningObjective(model)))
    assert str(refused.value) == (
        "model: accuracy, precision, scores.f1, scores.recall: only one of the model and the checkpoint has this metric"
    )


def keeping(put, take=nothing):
    return with_methods(
        on_save_checkpoint=lambda self, checkpoint: put(checkpoint),
        on_load_checkpoint=lambda self, checkpoint: take(checkpoint),
    )


def test_hooks_put_plain_values_into_a_checkpoint_and_get_them_back():
    content = {
        "tensor": torch.arange(3),
        "weight": torch.nn.Parameter(torch.ones(2)),
        "nested": {"list": [1, 2.5, None, (True, "text")], 7: b"bytes", "complex": 1j},
    }
    seen = []
    model = keeping(lambda checkpoint: checkpoint.update(content), seen.append)
    lightning.check(model)
    saved = lightning.saved(model)
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    lightning.restored(model, loaded)
    assert seen == [loaded]
    assert str(loaded) == str(content)


@pytest.mark.parametrize("model", [Digits(), Told(), torch.nn.Linear(1, 1)])
def test_without_hooks_there_is_nothing_to_keep(model):
    assert lightning.saved(model) == {}
    lightning.restored(model, {"left": "alone"})


def set_in_it(checkpoint):
    checkpoint["sizes"] = [{"a": {1, 2}}]


@pytest.mark.parametrize(
    ("put", "where"),
    [
        (set_in_it, "a set into checkpoint['sizes'][0]['a']"),
        (lambda checkpoint: checkpoint.update(x=torch.tensor(1.0).numpy()), "a ndarray into checkpoint['x']"),
        (
            lambda checkpoint: checkpoint.update(x=torch.tensor(1.0).numpy()[()]),
            "a float32 into checkpoint['x']",
        ),
        (lambda checkpoint: checkpoint.update(x={(1, 2): 3}), "a tuple into the keys of checkpoint['x']"),
    ],
)
def test_what_could_not_be_loaded_safely_is_refused_by_its_place(put, where):
    with pytest.raises(TrainingError) as refused:
        lightning.saved(keeping(put))
    assert str(refused.value) == (
        f"model: on_save_checkpoint put {where}: only tensors, numbers, strings, lists, tuples and dicts are kept"
    )


def missing(checkpoint):
    checkpoint["state_dict"].pop("x")


def test_a_hook_that_fails_is_named_with_the_user_s_line():
    line = f"KeyError: 'state_dict' ({__file__}:{missing.__code__.co_firstlineno + 1})"
    with pytest.raises(TrainingError) as failed:
        lightning.saved(keeping(missing))
    assert str(failed.value) == f"model: on_save_checkpoint: {line}"
    with pytest.raises(TrainingError) as failed:
        lightning.restored(keeping(nothing, missing), {})
    assert str(failed.value) == f"model: on_load_checkpoint: {line}"
