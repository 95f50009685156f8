"""The training loop, from top to bottom. Knows no Ray, Hydra or MLflow, and changes nothing but TrainState."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.ingest.batches import Ingest, MicroBatch
from runner.learner import Learner
from runner.plan import Goal, Plan

Metrics = dict[str, float]


@dataclass
class TrainState:
    """Where the training stands. Epochs and steps are those that are done."""

    epoch: int = 0
    step: int = 0
    best: float | None = None  # monitored value
    best_step: int | None = None
    patience_value: float | None = None  # what the next validation has to beat by Goal.min_delta
    stale: int = 0  # validations since it was beaten
    stopped: bool = False  # early


@dataclass
class Stretch:
    """This rank's sums over the steps since the last report."""

    # [Σ losses, Σ weights, rows] and [Σ gradient norms]
    loss: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    norms: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    steps: int = 0
    started: float = field(default_factory=time.perf_counter)


def fit(
    state: TrainState, plan: Plan, learner: Learner, ingest: Ingest, communicator: Communicator
) -> Iterator[Metrics]:
    """Train to the plan's last step; yields metrics, equal on all ranks, after each epoch and each validation."""
    while not state.stopped and state.step < plan.total_steps:
        epoch_rows, stretch = 0, start(learner)
        for micro_batches in ingest.steps(state.epoch):
            lr = learner.schedule.lr
            step(learner, micro_batches, stretch, communicator)
            state.step += 1
            ends_epoch = state.step % plan.steps_per_epoch == 0
            validates = state.step % plan.validate_every == 0 or state.step == plan.total_steps
            if not (ends_epoch or validates):
                continue
            metrics, rows = summary(stretch, learner, communicator)
            epoch_rows += rows
            if ends_epoch:
                state.epoch += 1
                check_rows(epoch_rows, plan)
            if validates:
                metrics |= evaluate(plan, learner, ingest, communicator)
                value = monitored(metrics, plan.goal)
                learner.schedule.measured(value)
                judge(state, value, plan.goal)
            yield {**metrics, "lr": lr, "epoch": state.step / plan.steps_per_epoch}
            if state.stopped or state.step == plan.total_steps:
                return
            stretch = start(learner)
        if over := state.step % plan.steps_per_epoch:
            raise TrainingError(f"an epoch of {plan.steps_per_epoch} steps was left after {over}")


def start(learner: Learner) -> Stretch:
    learner.train_mode()
    return Stretch()


def step(
    learner: Learner, micro_batches: list[MicroBatch], stretch: Stretch, communicator: Communicator
) -> None:
    """One optimizer step; adds this rank's losses and rows to `stretch`."""
    # The order is fixed: zero; every backward (Horovod starts to average a gradient as its last one ends); wait for the
    # averages, undo the loss scale, clip, step. Clipping before the average would clip each rank's own gradient.
    objective, optimizer, scaler = learner.objective, learner.optimizer, learner.scaler
    optimizer.zero_grad()
    # Averaging the ranks' sums × size / total gives the mean over the global batch, however unevenly it is split.
    factor = communicator.size / total_weight(learner, micro_batches, communicator)
    for batch in micro_batches:
        with learner.autocast():
            losses = objective.losses(learner.model, batch.inputs, batch.targets)
        scaler.scale(losses.sum() * (factor if batch.counted else 0.0)).backward()
        if batch.counted:
            weight = objective.weights(batch.targets).sum()
            rows = torch.full_like(weight, len(losses))
            stretch.loss = stretch.loss.to(losses.device) + torch.stack(
                [losses.detach().double().sum(), weight, rows]
            )
    with communicator.averaged(optimizer):
        scaler.unscale_(optimizer)
        norm = learner.clip()
        scaler.step(optimizer)
        scaler.update()
    learner.schedule.advance()
    learner.update_average()
    if norm is not None:
        stretch.norms = stretch.norms.to(norm.device) + norm.double()
    stretch.steps += 1


def total_weight(learner: Learner, micro_batches: list[MicroBatch], communicator: Communicator) -> float:
    """Σ row weights of the global batch: its rows, unless the objective weighs or masks them (then collective)."""
    if not learner.objective.is_weighted:
        return micro_batches[0].global_rows
    mine = [learner.objective.weights(batch.targets).sum() for batch in micro_batches if batch.counted]
    total = torch.stack(mine).sum().cpu() if mine else torch.zeros((), dtype=torch.float64)
    return float(communicator.allgather(total).sum()) or 1.0  # all masked: no loss, and nothing to divide


def summary(stretch: Stretch, learner: Learner, communicator: Communicator) -> tuple[Metrics, int]:
    """(metrics, rows) of the steps of all ranks: `train/loss` is the mean over the rows, `seconds/training` the slowest
    rank's time."""
    sums = stretch.loss.cpu()  # on a GPU this waits for the steps: read the clock after it
    seconds = torch.tensor([time.perf_counter() - stretch.started], dtype=torch.float64)
    gathered = communicator.allgather(torch.cat([sums, seconds]))
    loss, weight, rows = gathered[:, :3].sum(dim=0).tolist()
    slowest = float(gathered[:, 3].max())
    metrics = {
        "train/loss": loss / weight if weight else math.nan,
        "throughput/samples_per_second": rows / slowest,
        "seconds/training": slowest,
    }
    metrics |= learner.objective.logged(communicator)
    if learner.log_norms:
        metrics["norm/gradient"] = float(stretch.norms) / stretch.steps
        metrics["norm/parameters"] = learner.parameter_norm()
    return metrics, round(rows)


def check_rows(rows: int, plan: Plan) -> None:
    if rows != plan.epoch_rows:
        raise TrainingError(f"an epoch took {rows} rows of {plan.epoch_rows}: each must be used once")


@torch.no_grad()
def evaluate(plan: Plan, learner: Learner, ingest: Ingest, communicator: Communicator) -> Metrics:
    """Loss and metrics over every validation row exactly once, whatever the number of ranks."""
    model, objective = learner.evaluated_model(), learner.objective
    sums, rows = torch.zeros(objective.width, dtype=torch.float64), 0
    for inputs, targets in ingest.evaluation():
        with learner.autocast():
            sums += objective.measure(model, inputs, targets).cpu()
        rows += len(inputs)
    *totals, counted = communicator.allgather(torch.cat([sums, torch.tensor([float(rows)]).double()])).sum(
        dim=0
    )
    if round(float(counted)) != plan.val_rows:
        raise TrainingError(f"evaluation saw {counted:g} rows of {plan.val_rows}: each must be counted once")
    measured = objective.metrics(torch.stack(totals), communicator)
    return {f"val/{name}": value for name, value in measured.items()}


def monitored(metrics: Metrics, goal: Goal) -> float:
    if goal.monitor not in metrics:
        raise TrainingError(f"checkpoint.monitor={goal.monitor}: there are {', '.join(metrics)}")
    return metrics[goal.monitor]


def judge(state: TrainState, value: float, goal: Goal) -> None:
    """Keep the best monitored value, and stop when `goal.patience` validations in a row were no better."""
    sign = 1 if goal.maximise else -1

    def better(than: float | None, by: float) -> bool:
        return not math.isnan(value) and (than is None or sign * value > sign * than + by)

    if better(state.best, 0.0):
        state.best, state.best_step = value, state.step
    if better(state.patience_value, goal.min_delta):
        state.patience_value, state.stale = value, 0
    else:
        state.stale += 1
    state.stopped = goal.patience is not None and state.stale >= goal.patience
