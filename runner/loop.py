"""The training loop, from top to bottom. Knows no Ray, Hydra or MLflow, and changes nothing but TrainState."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.ingest.batches import Ingest, MicroBatch
from runner.objective import Objective
from runner.plan import Plan
from runner.schedule import Schedule

Metrics = dict[str, float]


@dataclass
class TrainState:
    """Where the training stands: epochs and optimizer steps done, and the best monitored value so far."""

    epoch: int = 0
    step: int = 0
    best: float | None = None


@dataclass(frozen=True)
class Learner:
    """What is trained, and how."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    objective: Objective


def fit(
    state: TrainState, plan: Plan, learner: Learner, ingest: Ingest, communicator: Communicator
) -> Iterator[Metrics]:
    """Train epoch by epoch; yields the epoch's metrics (equal on all ranks) after each."""
    while state.epoch < plan.epochs:
        metrics = train_epoch(state, plan, learner, ingest, communicator)
        metrics |= evaluate(plan, learner, ingest, communicator)
        state.epoch += 1
        yield {**metrics, "epoch": state.epoch}


def train_epoch(
    state: TrainState, plan: Plan, learner: Learner, ingest: Ingest, communicator: Communicator
) -> Metrics:
    """One pass over the rows. `train/loss` is the mean over its rows, `lr` that of its last step, `seconds/epoch`
    the slowest rank's time."""
    started = time.perf_counter()
    learner.model.train()
    sums = torch.zeros(2, dtype=torch.float64)  # Σ row losses, rows
    lr = learner.schedule.lr
    for micro_batches in ingest.steps(state.epoch):
        lr = learner.schedule.lr
        sums = sums.to(micro_batches[0].inputs.device) + step(learner, micro_batches)
        state.step += 1
    seconds = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
    gathered = communicator.allgather(torch.cat([sums.cpu(), seconds]))
    loss, rows = gathered[:, :2].sum(dim=0).tolist()
    if round(rows) != plan.train_rows - plan.dropped_rows:
        raise TrainingError(
            f"an epoch took {rows:g} rows of {plan.train_rows - plan.dropped_rows}: each must be used once"
        )
    slowest = float(gathered[:, 2].max())
    return {
        "train/loss": loss / rows,
        "lr": lr,
        "throughput/samples_per_second": rows / slowest,
        "seconds/epoch": slowest,
    }


def step(learner: Learner, micro_batches: list[MicroBatch]) -> Tensor:
    """One optimizer step; returns this rank's float64 [Σ row losses, rows], on the batch's device."""
    # The order is fixed: zero, then every backward (Horovod averages a gradient as its last one ends), then step.
    learner.optimizer.zero_grad()
    sums = []
    for batch in micro_batches:
        losses = learner.objective.row_losses(learner.model(batch.inputs), batch.targets)
        (batch.scale * losses.sum()).backward()
        if batch.scale:
            loss = losses.detach().double().sum()
            sums.append(torch.stack([loss, torch.full_like(loss, len(losses))]))
    learner.optimizer.step()
    learner.schedule.advance()
    return torch.stack(sums).sum(dim=0) if sums else torch.zeros(2, dtype=torch.float64)


@torch.no_grad()
def evaluate(plan: Plan, learner: Learner, ingest: Ingest, communicator: Communicator) -> Metrics:
    """Loss and metrics over every validation row exactly once, whatever the number of ranks."""
    learner.model.eval()
    functions = {"loss": learner.objective.row_losses, **learner.objective.row_metrics}
    sums = torch.zeros(len(functions) + 1, dtype=torch.float64)
    for inputs, targets in ingest.evaluation():
        outputs = learner.model(inputs)
        values = [float(function(outputs, targets).double().sum()) for function in functions.values()]
        sums += torch.tensor([*values, len(inputs)], dtype=torch.float64)
    *totals, rows = communicator.allgather(sums).sum(dim=0).tolist()
    if round(rows) != plan.val_rows:
        raise TrainingError(f"evaluation saw {rows:g} rows of {plan.val_rows}: each must be counted once")
    return {f"val/{name}": total / rows for name, total in zip(functions, totals, strict=True)}
