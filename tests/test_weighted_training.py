"""Weighted and masked rows at 1 to 3 ranks, against torch's own loss over each whole global batch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from runner.ingest.batches import Place
from runner.ingest.rows import Arrays
from runner.ingest.sampler import epoch_order
from runner.ingest.tensors import TensorIngest
from runner.learner import Learner
from runner.objective import objective
from runner.plan import DataFacts
from runner.schedule import Schedule
from runner.schema import Interval, Loss, Task
from runner.train_state import TrainState
from tests.fakes import make_experiment, metrics_of, on_ranks, plan_for

LR, SEED, EPOCHS, GLOBAL_BATCH, ROWS, VAL_ROWS = (
    0.2,
    3,
    2,
    12,
    26,
    7,
)  # an epoch's last global batch has 2 rows
LAYOUTS = [
    (1, 12, 1),
    (2, 6, 1),
    (3, 4, 1),
    (1, 4, 3),
    (2, 3, 2),
    (3, 2, 2),
    (2, 2, 3),
]  # workers, rows, accumulated
WEIGHTS = [0.25, 1.0, 3.0]
SIZES = {"train": ROWS, "val": VAL_ROWS}


def classes():
    draws = np.random.default_rng(8)
    return {name: Arrays(draws.standard_normal((n, 5)), draws.integers(0, 3, n)) for name, n in SIZES.items()}


def texts():
    """Texts of 6 tokens, of which none to all count."""
    draws = np.random.default_rng(9)
    splits = {}
    for name, rows in SIZES.items():
        inputs, targets = draws.integers(0, 3, (2, rows, 6))
        counted = draws.random((rows, 6)) < np.linspace(0, 1, rows)[:, None]
        splits[name] = Arrays(inputs, np.where(counted, targets, -100))
    return splits


def tokens_mean(outputs, targets):
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def class_weight(targets):
    return torch.tensor(WEIGHTS).double()[targets].sum().item()


def token_count(targets):
    return (targets != -100).sum().item()


LANGUAGE_MODEL = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
CASES = {  # task, splits, loss, model; torch's mean over some rows, and the sum of their weights
    "class weights": (
        Task.classification, classes(), Loss(class_weights=WEIGHTS, label_smoothing=0.1), nn.Linear(5, 3),
        nn.CrossEntropyLoss(torch.tensor(WEIGHTS).double(), label_smoothing=0.1), class_weight,
    ),
    "masked tokens": (
        Task.language_modeling, texts(), Loss(), LANGUAGE_MODEL, tokens_mean, token_count,
    ),
    "masked tokens with a loss of one's own": (
        Task.language_modeling, texts(), Loss(target={"_target_": "torch.nn.CrossEntropyLoss"}), LANGUAGE_MODEL,
        tokens_mean, token_count,
    ),
}  # fmt: skip


def trained(case, layout):
    """Each rank's weights, and val/loss and train/loss of each epoch."""
    task, splits, loss, model, *_ = CASES[case]
    workers, batch, accumulation = layout
    plan = plan_for(workers, batch, accumulation, rows=ROWS, val_rows=VAL_ROWS, epochs=EPOCHS)
    assert plan.global_batch_size == GLOBAL_BATCH
    experiment = make_experiment({"dataset.task": task, "loss": loss})

    def rank(communicator):
        mine = copy.deepcopy(model).double()
        optimizer = communicator.distribute(torch.optim.SGD(mine.parameters(), lr=LR), mine, accumulation)
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
        schedule = Schedule(optimizer, constant, Interval.step, 0, 1.0, plan.steps_per_epoch)
        learns = objective(experiment, DataFacts(ROWS, VAL_ROWS, (5,), 3))
        ingest = TensorIngest(splits, plan, SEED, communicator.rank, Place(torch.device("cpu")))
        learner = Learner(mine, optimizer, schedule, learns)
        metrics = list(metrics_of(TrainState(), plan, learner, ingest, communicator))
        return mine.state_dict(), *([epoch[name] for epoch in metrics] for name in ("val/loss", "train/loss"))

    return on_ranks(workers, rank)


def in_torch(case):
    """The same of a training with torch's mean over each whole global batch."""
    _, splits, _, model, mean, weight = CASES[case]
    model = copy.deepcopy(model).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    columns = {
        name: (torch.from_numpy(rows.inputs), torch.from_numpy(rows.targets)) for name, rows in splits.items()
    }
    (inputs, targets), (val_inputs, val_targets) = columns["train"], columns["val"]
    val_losses, train_losses = [], []
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in epoch_order(ROWS, SEED, epoch).split(GLOBAL_BATCH):
            optimizer.zero_grad()
            loss = mean(model(inputs[rows]), targets[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * weight(targets[rows])
        train_losses.append(total / weight(targets))
        val_losses.append(mean(model(val_inputs), val_targets).item())
    return model.state_dict(), val_losses, train_losses


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_any_split_trains_as_the_whole_global_batch(case, layout):
    weights, val_losses, train_losses = in_torch(case)
    for found, *losses in trained(case, layout):
        for name, tensor in weights.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-12)
        assert losses == [pytest.approx(val_losses, abs=1e-12), pytest.approx(train_losses, abs=1e-12)]


def test_a_global_batch_without_a_counted_token_changes_nothing():
    inputs = np.zeros((24, 6), dtype=np.int64)
    splits = {"train": Arrays(inputs, np.full_like(inputs, -100)), "val": Arrays(inputs[:7], inputs[:7])}
    plan = plan_for(2, 6, rows=24, val_rows=7, epochs=1)
    experiment = make_experiment({"dataset.task": Task.language_modeling})

    def rank(communicator):
        mine = copy.deepcopy(LANGUAGE_MODEL)
        optimizer = torch.optim.SGD(mine.parameters(), lr=LR)
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
        schedule = Schedule(optimizer, constant, Interval.step, 0, 1.0, plan.steps_per_epoch)
        learner = Learner(mine, optimizer, schedule, objective(experiment, DataFacts(24, 7, (6,), 3)))
        ingest = TensorIngest(splits, plan, SEED, communicator.rank, Place(torch.device("cpu")))
        (metrics,) = metrics_of(TrainState(), plan, learner, ingest, communicator)
        assert np.isnan(metrics["train/loss"])
        return mine.state_dict()

    for found in on_ranks(2, rank):
        torch.testing.assert_close(found, LANGUAGE_MODEL.state_dict(), rtol=0, atol=0)
