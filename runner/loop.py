"""The training loop, from top to bottom. Knows no Ray, Hydra or MLflow, and changes nothing but TrainState."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from runner.communicator import Communicator
from runner.errors import NOT_FINITE, TrainingError
from runner.ingest.agreement import compare_orders
from runner.ingest.batches import Ingest, MicroBatch
from runner.learner import Learner
from runner.plan import Goal, Plan
from runner.schema import OnNonfinite
from runner.train_state import Metrics, Moment, NewLR, Stretch, TrainState

Due = Callable[[TrainState], bool]  # asked once a step, in the same order on all ranks, and answered alike


def fit(
    state: TrainState,
    stretch: Stretch,
    plan: Plan,
    learner: Learner,
    ingest: Ingest,
    communicator: Communicator,
    due: Due = lambda state: False,
    pauses: Due = lambda state: False,
) -> Iterator[Moment]:
    """Train from `state` to the plan's last step; yields the same moments on all ranks, at each of which `state`,
    `stretch` and the learner are all that a resumed training needs: after each epoch and validation, where a checkpoint is
    `due`, and where it `pauses` besides."""
    learner.train_mode()
    lrs: list[NewLR] = []
    state.ended = plan.is_over(state.progress)
    while not (state.stopped or state.ended):
        compare_orders(ingest, plan, state.epoch, communicator)
        left, end = plan.steps_left(state.rows), plan.rows_at_end(state.rows)
        for micro_batches in ingest.steps(state.epoch, state.rows):
            if not left:
                raise TrainingError(f"an epoch of {plan.steps_per_epoch} steps went on after its end")
            lr, gain = step(learner, micro_batches, stretch, communicator, state.step + 1)
            state.step, state.gained, left = state.step + 1, state.gained + gain - 1, left - 1
            state.ended = plan.is_over(state.progress)
            state.rows += micro_batches[0].global_rows
            epochs = state.epoch + state.rows / plan.epoch_rows
            if left == 0:
                if state.rows != end:
                    raise TrainingError(f"an epoch took {state.rows} rows of {end}: each must be used once")
                state.epoch, state.rows, epochs = state.epoch + 1, 0, state.epoch + 1.0
            metrics: Metrics = {}
            validates = state.ended or plan.validates(state.epoch, state.step, ends_epoch=left == 0)
            if left == 0 or validates:
                metrics = summary(stretch, learner, communicator)
                if validates:
                    metrics |= evaluate(plan, learner, ingest, communicator)
                    value = monitored(metrics, plan.goal)
                    learner.schedule.measured(value)
                    judge(state, value, plan.goal)
                metrics |= {"lr": lr, "epoch": epochs}
                metrics |= learner.adascale.metrics(stretch.gains / stretch.steps, state.progress)
                restart(stretch, communicator)
            elif lr != state.lr:
                lrs.append(NewLR(state.step, int(time.time() * 1000), lr))
            state.lr = lr
            is_due = due(state)
            if metrics or is_due or pauses(state):
                yield Moment(metrics, is_due, lrs)
                lrs = []
            if state.stopped or state.ended:
                return
            if metrics:
                learner.train_mode()
                stretch.started, stretch.waited = time.perf_counter(), -communicator.waited
        if left or state.rows:
            raise TrainingError(f"an epoch of {plan.steps_per_epoch} steps was left {left} before its end")


def restart(stretch: Stretch, communicator: Communicator) -> None:
    """Empty sums; what the communicator has waited until now is behind it."""
    vars(stretch).update(vars(Stretch(waited=-communicator.waited)))


def step(
    learner: Learner, batches: list[MicroBatch], stretch: Stretch, communicator: Communicator, number: int = 1
) -> tuple[float, float]:
    """Optimizer step `number`, with its LR (of the first parameter group) and AdaScale's gain; adds this rank's losses and
    rows to `stretch`."""
    # The order is fixed: zero; every backward (Horovod starts to average a gradient as its last one ends); wait for the
    # averages, undo the loss scale, clip, step. Clipping before the average would clip each rank's own gradient.
    objective, optimizer, scaler = learner.objective, learner.optimizer, learner.scaler
    rows = batches[0].global_rows
    gain = learner.adascale.begin(rows)
    learner.schedule.scale(gain)
    lr = learner.schedule.lr
    optimizer.zero_grad()
    # Averaging the ranks' sums × size / total gives the mean over the global batch, however unevenly it is split.
    factor = communicator.size / total_weight(learner, batches, communicator)
    sums, buffers = torch.zeros_like(stretch.loss), learner.kept_buffers()
    for batch in batches:
        with learner.autocast():
            losses = objective.losses(learner.model, batch.inputs, batch.targets)
        total = losses.sum()
        share: float | Tensor = factor if batch.counted else 0.0
        if learner.checks:  # a loss that is not finite makes all gradients NaN, and so those of all ranks
            share = share * (1 + 0 * total.detach())
        scaler.scale(total * share).backward()
        if batch.counted:
            weight = objective.weights(batch.targets).sum()
            counted = torch.full_like(weight, len(losses))
            sums = sums.to(losses.device) + torch.stack([losses.detach().double().sum(), weight, counted])
    with communicator.averaged(optimizer):
        scaler.unscale_(optimizer)
        norm = learner.clip()
        # The averaged gradient is the same on all ranks, and so is what follows from it.
        is_finite = not learner.checks or bool(norm is not None and norm.isfinite())
        if not is_finite and refused(learner, sums, communicator, number):
            stretch.skipped += 1
            sums[:2] = 0
            learner.restore_buffers(buffers)
        else:
            scaler.step(optimizer)
            learner.update_average()
            learner.adascale.observe(rows, norm, scaler, communicator)
        scaler.update()
    learner.schedule.advance(gain)
    stretch.loss = stretch.loss.to(sums.device) + sums
    if norm is not None and learner.log_norms and is_finite:
        stretch.norms = stretch.norms.to(norm.device) + torch.stack([norm, torch.ones_like(norm)]).double()
    stretch.steps += 1
    stretch.gains += gain
    stretch.expected += rows
    return lr, gain


def refused(learner: Learner, sums: Tensor, communicator: Communicator, number: int) -> bool:
    """Whether to leave this step out, as its gradient is not finite; raises where the config says stop. Collective."""
    flags = communicator.allgather(sums[:1].cpu().isfinite().to(torch.uint8))  # Horovod knows no bool
    ranks = [str(rank) for rank, is_finite in enumerate(flags.flatten().tolist()) if not is_finite]
    if not ranks and learner.scaler.is_enabled():
        return False  # an overflow of float16: the scaler skips the step itself and lowers its scale
    if learner.on_nonfinite is OnNonfinite.stop:
        what = f"the loss of rank {', '.join(ranks)}" if ranks else "the gradient"
        raise TrainingError(
            f"step {number}: {what} {NOT_FINITE}; type a lower optimizer.lr, trainer.clip_norm=1, or "
            "trainer.on_nonfinite=skip to leave such steps out"
        )
    return True


def total_weight(learner: Learner, micro_batches: list[MicroBatch], communicator: Communicator) -> float:
    """Σ row weights of the global batch: its rows, unless the objective weighs or masks them (then collective)."""
    if not learner.objective.is_weighted:
        return micro_batches[0].global_rows
    mine = [learner.objective.weights(batch.targets).sum() for batch in micro_batches if batch.counted]
    total = torch.stack(mine).sum().cpu() if mine else torch.zeros((), dtype=torch.float64)
    return float(communicator.allgather(total).sum()) or 1.0  # all masked: no loss, and nothing to divide


def summary(stretch: Stretch, learner: Learner, communicator: Communicator) -> Metrics:
    """Of the steps of all ranks: `train/loss` is the mean over the rows, `seconds/training` the slowest rank's time,
    `step_seconds/rank-N` a step of each rank without what it waited for the others."""
    sums = stretch.loss.cpu()  # on a GPU this waits for the steps: read the clock after it
    seconds = stretch.seconds + time.perf_counter() - stretch.started
    waited = stretch.waited + communicator.waited
    gathered = communicator.allgather(torch.cat([sums, torch.tensor([seconds, waited]).double()]))
    loss, weight, rows = gathered[:, :3].sum(dim=0).tolist()
    if round(rows) != stretch.expected:
        raise TrainingError(f"{stretch.expected} rows were due, {rows:g} were used: each must be used once")
    slowest = float(gathered[:, 3].max())
    metrics = {
        "train/loss": loss / weight if weight else math.nan,
        "throughput/samples_per_second": rows / slowest,
        "seconds/training": slowest,
    }
    for rank, (total, wait) in enumerate(gathered[:, 3:].tolist()):
        metrics[f"step_seconds/rank-{rank}"] = (total - wait) / stretch.steps
    if stretch.skipped:
        metrics["skipped_steps"] = float(stretch.skipped)
    metrics |= learner.objective.logged(communicator)
    if learner.log_norms:
        metrics["norm/gradient"] = float(stretch.norms[0] / stretch.norms[1])
        metrics["norm/parameters"] = learner.parameter_norm()
    return metrics


@torch.no_grad()
def evaluate(plan: Plan, learner: Learner, ingest: Ingest, communicator: Communicator) -> Metrics:
    """Loss and metrics over every validation row exactly once, whatever the number of ranks."""
    model, objective = learner.evaluated_model(), learner.objective
    sums, rows = torch.zeros(objective.width, dtype=torch.float64), 0
    for inputs, targets in ingest.evaluation():
        with learner.autocast():
            sums += objective.measure(model, inputs, targets).cpu()
        rows += len(inputs)
    gathered = communicator.allgather(torch.cat([sums, torch.tensor([rows]).double()]))
    *totals, counted = gathered.sum(dim=0)
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
    if goal.is_better(value, state.best):
        state.best, state.best_step = value, state.step
    if goal.is_better(value, state.patience_value, goal.min_delta):
        state.patience_value, state.stale = value, 0
    else:
        state.stale += 1
    state.stopped = goal.patience is not None and state.stale >= goal.patience
