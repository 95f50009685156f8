"""The loop at 1 to 4 ranks (threads with real collectives), against the same training written in numpy."""

import copy

import numpy as np
import pytest
import torch

from models.linear import Linear
from models.mlp import MLP
from runner.communicator import SingleProcess
from runner.errors import TrainingError
from runner.ingest.batches import Place
from runner.ingest.rows import Arrays
from runner.ingest.sampler import epoch_order
from runner.ingest.tensors import TensorIngest
from runner.learner import Learner
from runner.loop import evaluate, step, summary
from runner.objective import objective
from runner.plan import DataFacts
from runner.schedule import Schedule
from runner.schema import Interval, Task
from runner.train_state import Stretch, TrainState
from tests.fakes import make_experiment, metrics_of, on_ranks, plan_for, without_times

CPU = Place(torch.device("cpu"))
EPOCHS, LR, SEED = 3, 0.05, 11
GLOBAL_BATCH = 24
# The same global batch in all ways: workers, rows, accumulated.
LAYOUTS = [(1, 24, 1), (2, 12, 1), (3, 8, 1), (4, 6, 1), (1, 12, 2), (2, 6, 2), (3, 4, 2), (4, 3, 2)]
ROWS = [48, 50, 53]  # none, fewer and more than four rows in the last batch


def regression(rows, val_rows=7):
    draws = np.random.default_rng(3)
    weights = np.array([[1.0], [-2.0], [0.5]])
    splits = {}
    for name, count in (("train", rows), ("val", val_rows)):
        inputs = draws.standard_normal((count, 3))
        splits[name] = (inputs, inputs @ weights + 0.3 + 0.1 * draws.standard_normal((count, 1)))
    return splits


def classes(rows, val_rows=7):
    draws = np.random.default_rng(4)
    return {
        name: (draws.standard_normal((count, 5)), draws.integers(0, 3, count))
        for name, count in (("train", rows), ("val", val_rows))
    }


def in_memory(splits):
    return {name: Arrays(*columns) for name, columns in splits.items()}


def learner_of(model, communicator, accumulation, task, momentum=0.0):
    model = copy.deepcopy(model).double()
    communicator.broadcast_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum)
    optimizer = communicator.distribute(optimizer, model, accumulation)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    schedule = Schedule(optimizer, constant, Interval.step, 2, 0.5, 3)
    aim = objective(make_experiment({"dataset.task": task}), DataFacts(1, 1, (1,), 3))
    return Learner(model, optimizer, schedule, aim)


def training(splits, model, layout, task, momentum=0.0):
    """Each rank's (weights, metrics of all epochs, state)."""
    workers, batch, accumulation = layout
    rows, val_rows = len(splits["train"][0]), len(splits["val"][0])
    plan = plan_for(workers, batch, accumulation, rows=rows, val_rows=val_rows, epochs=EPOCHS)
    assert plan.global_batch_size == GLOBAL_BATCH

    def rank(communicator):
        learner = learner_of(model, communicator, accumulation, task, momentum)
        ingest = TensorIngest(in_memory(splits), plan, SEED, communicator.rank, CPU)
        state = TrainState()
        metrics = list(metrics_of(state, plan, learner, ingest, communicator))
        return {name: tensor.numpy() for name, tensor in learner.model.state_dict().items()}, metrics, state

    return on_ranks(workers, rank)


def in_numpy(splits, weights, bias):
    """Mini-batch gradient descent on the mean squared error, with the same warm-up: (weights, bias, metrics)."""
    (inputs, targets), (val_inputs, val_targets) = splits["train"], splits["val"]
    history, taken = [], 0
    for epoch in range(EPOCHS):
        order, losses = epoch_order(len(inputs), SEED, epoch).numpy(), []
        for start in range(0, len(inputs), GLOBAL_BATCH):
            rows = order[start : start + GLOBAL_BATCH]
            lr = LR * (0.5 + 0.25 * min(taken, 2))
            errors = inputs[rows] @ weights + bias - targets[rows]
            losses += (errors**2)[:, 0].tolist()
            weights = weights - lr * 2 * inputs[rows].T @ errors / len(rows)
            bias = bias - lr * 2 * errors.sum() / len(rows)
            taken += 1
        errors = val_inputs @ weights + bias - val_targets
        history.append(
            {
                "train/loss": np.mean(losses),
                "lr": lr,
                "val/loss": (errors**2).mean(),
                "val/mae": np.abs(errors).mean(),
                "epoch": epoch + 1,
            }
        )
    return weights, bias, history


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", ROWS)
def test_any_number_of_ranks_trains_as_numpy_does(rows, layout):
    splits = regression(rows)
    model = Linear(3, 1).double()
    weights, bias, history = in_numpy(
        splits, model.layers[1].weight.detach().numpy().T, model.layers[1].bias.item()
    )
    for found, metrics, state in training(splits, model, layout, Task.regression):
        np.testing.assert_allclose(found["layers.1.weight"], weights.T, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found["layers.1.bias"], [bias], rtol=0, atol=1e-12)
        assert [without_times(epoch) for epoch in metrics] == [pytest.approx(e, abs=1e-12) for e in history]
        assert (state.epoch, state.step) == (EPOCHS, EPOCHS * -(-rows // GLOBAL_BATCH))


@pytest.mark.parametrize("layout", LAYOUTS[1:])
def test_any_number_of_ranks_gives_one_rank_s_classifier(layout):
    splits = classes(53)
    torch.manual_seed(0)
    model = MLP(5, 3, [8]).double()
    ((expected, history, _),) = training(splits, model, LAYOUTS[0], Task.classification, momentum=0.9)
    for found, metrics, _ in training(splits, model, layout, Task.classification, momentum=0.9):
        for name, tensor in expected.items():
            np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-12)
        for epoch, wanted in zip(metrics, history, strict=True):
            assert without_times(epoch) == pytest.approx(without_times(wanted), abs=1e-12)


def test_classification_metrics_are_numpy_s_over_all_validation_rows():
    splits = classes(53, val_rows=10)
    ((weights, metrics, _),) = training(splits, MLP(5, 3, []), LAYOUTS[0], Task.classification)
    inputs, labels = splits["val"]
    logits = inputs @ weights["layers.1.weight"].T + weights["layers.1.bias"]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[range(10), labels]
    assert metrics[-1]["val/loss"] == pytest.approx(losses.mean(), abs=1e-12)
    assert metrics[-1]["val/accuracy"] == (logits.argmax(axis=1) == labels).mean()


def test_an_epoch_s_metrics_and_their_names():
    ((_, metrics, _),) = training(regression(50), Linear(3, 1), LAYOUTS[0], Task.regression)
    expected = [
        "train/loss",
        "throughput/samples_per_second",
        "seconds/training",
        "step_seconds/rank-0",
        "val/loss",
        "val/mae",
        "lr",
        "epoch",
    ]
    assert list(metrics[0]) == expected
    for epoch in metrics:
        assert epoch["throughput/samples_per_second"] * epoch["seconds/training"] == pytest.approx(50)


def test_the_time_of_an_epoch_is_the_slowest_rank_s():
    class SlowPeer(SingleProcess):
        def allgather(self, tensor):
            return torch.stack([tensor, torch.tensor([0.0, 0.0, 0.0, 600.0, 590.0], dtype=torch.float64)])

    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)
    stretch = Stretch(loss=torch.tensor([24.0, 48.0, 48.0], dtype=torch.float64), steps=2, expected=48)
    metrics = summary(stretch, learner, SlowPeer())
    assert metrics["train/loss"] == 0.5
    assert metrics["step_seconds/rank-1"] == (600 - 590) / 2
    assert metrics["seconds/training"] == 600.0
    assert metrics["throughput/samples_per_second"] == 48 / 600


def test_fit_goes_on_from_the_state_it_is_given():
    splits, plan = regression(48), plan_for(1, 24, rows=48, val_rows=7, epochs=EPOCHS)
    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)
    state = TrainState(epoch=2, step=4)
    metrics = list(
        metrics_of(state, plan, learner, TensorIngest(in_memory(splits), plan, SEED, 0, CPU), SingleProcess())
    )
    assert [epoch["epoch"] for epoch in metrics] == [3]
    assert (state.epoch, state.step) == (3, 6)


def test_a_step_returns_the_sum_of_its_row_losses_and_moves_the_weights_once():
    splits, plan = regression(5), plan_for(1, 3, 2, rows=5, val_rows=7)
    learner = learner_of(Linear(3, 1), SingleProcess(), 2, Task.regression)
    layer = learner.model.layers[1]
    before, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    inputs, targets = (torch.from_numpy(column) for column in splits["train"])
    errors = inputs @ before.T + bias - targets
    (batches,) = TensorIngest(in_memory(splits), plan, SEED, 0, CPU).steps(0)
    stretch = Stretch()
    step(learner, batches, stretch, SingleProcess())
    assert stretch.loss.tolist() == [pytest.approx((errors**2).sum().item(), abs=1e-12), 5.0, 5.0]
    lr = LR * 0.5  # the warm-up's first
    torch.testing.assert_close(layer.weight.detach(), before - lr * 2 * errors.T @ inputs / 5)
    torch.testing.assert_close(layer.bias.detach(), bias - lr * 2 * errors.mean(dim=0))
    assert learner.schedule.lr == pytest.approx(LR * 0.75)


def test_a_step_of_fillers_alone_counts_no_row_and_leaves_the_weights():
    splits, plan = regression(2), plan_for(4, 6, rows=2, val_rows=7)
    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)
    before = learner.model.layers[1].weight.detach().clone()
    (batches,) = TensorIngest(in_memory(splits), plan, SEED, 0, CPU).steps(0)
    stretch = Stretch()
    step(learner, batches, stretch, SingleProcess())
    assert stretch.loss.tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(learner.model.layers[1].weight, before)


def test_the_model_trains_in_training_mode_and_is_evaluated_in_evaluation_mode():
    seen = []

    class Watching(Linear):
        def forward(self, inputs):
            seen.append((self.training, torch.is_grad_enabled()))
            return super().forward(inputs)

    splits, plan = regression(24), plan_for(1, 24, rows=24, val_rows=7, epochs=2)
    learner = learner_of(Watching(3, 1), SingleProcess(), 1, Task.regression)
    list(
        metrics_of(
            TrainState(), plan, learner, TensorIngest(in_memory(splits), plan, SEED, 0, CPU), SingleProcess()
        )
    )
    assert seen == [(True, True), (False, False)] * 2


@pytest.mark.parametrize("counted", [6, 8])
def test_an_evaluation_that_miscounts_is_an_error(counted):
    splits, plan = regression(24), plan_for(1, 24, rows=24, val_rows=7)
    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)

    class Miscounting(TensorIngest):
        def evaluation(self):
            inputs, targets = (torch.from_numpy(np.resize(c, (counted, c.shape[1]))) for c in splits["val"])
            yield inputs, targets

    with pytest.raises(TrainingError) as raised:
        evaluate(plan, learner, Miscounting(in_memory(splits), plan, SEED, 0, CPU), SingleProcess())
    assert str(raised.value) == f"evaluation saw {counted} rows of 7: each must be counted once"


def test_a_step_too_many_in_an_epoch_is_an_error():
    splits, plan = regression(48), plan_for(1, 24, rows=48, val_rows=7)
    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)
    ingest = TensorIngest(in_memory(splits), plan_for(1, 24, rows=48, val_rows=7), SEED, 0, CPU)
    ingest.steps = lambda epoch, done: [
        *TensorIngest.steps(ingest, epoch),
        next(TensorIngest.steps(ingest, epoch)),
    ]
    with pytest.raises(TrainingError, match="an epoch of 2 steps went on after its end"):
        list(metrics_of(TrainState(), plan, learner, ingest, SingleProcess()))


def test_an_epoch_without_a_step_left_is_an_error_and_no_endless_loop():
    splits, plan = regression(48), plan_for(1, 24, rows=48, val_rows=7)
    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)
    ingest = TensorIngest(in_memory(splits), plan, SEED, 0, CPU)
    with pytest.raises(TrainingError, match="an epoch of 2 steps was left 0 before its end"):
        list(metrics_of(TrainState(step=2, rows=48), plan, learner, ingest, SingleProcess()))


def test_a_row_too_few_in_an_epoch_is_an_error():
    plan = plan_for(1, 24, rows=48, val_rows=7)
    learner = learner_of(Linear(3, 1), SingleProcess(), 1, Task.regression)
    ingest = TensorIngest(in_memory(regression(47)), plan_for(1, 24, rows=47, val_rows=7), SEED, 0, CPU)
    with pytest.raises(TrainingError, match="an epoch took 47 rows of 48: each must be used once"):
        list(metrics_of(TrainState(), plan, learner, ingest, SingleProcess()))
