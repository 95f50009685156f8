"""What a training takes of memory and disk, estimated before it is launched from what one batch took (rehearsal.py)."""

from __future__ import annotations

from dataclasses import dataclass

from runner.executor_schema import ExecutorName
from runner.plan import Plan
from runner.schema import Experiment

MB, GB = 10**6, 10**9
# Measured (proportional set sizes): torch, Ray and Horovod in a worker; MLflow beside them in rank 0; a local Ray's processes.
WORKER, RANK_0, RAY = 340 * MB, 200 * MB, 800 * MB
STATELESS = (
    "SGD",
)  # optimizers whose state is their momentum; all others are taken to keep two values a weight


@dataclass(frozen=True)
class Footprint:
    """Bytes of one worker's model."""

    weights: int  # parameters and buffers
    gradients: int
    row: int  # of a batch: what its forward keeps for the backward, and the row itself


def state_bytes(experiment: Experiment, model: Footprint) -> int:
    """Of the optimizer's state and the moving average."""
    optimizer = experiment.optimizer.target or {}
    name = str(optimizer.get("_target_", "")).rpartition(".")[2]
    slots = (1 if optimizer.get("momentum") else 0) if name in STATELESS else 2
    return slots * model.gradients + (model.weights if experiment.trainer.ema_decay is not None else 0)


@dataclass(frozen=True)
class Needs:
    """Bytes of a training: once, and of each of `workers`, of which `rows` times `row` are its batch."""

    shared: int
    fixed: int
    row: int
    rows: int
    workers: int

    def total(self, parts: int = 1, workers: int | None = None) -> int:
        """With the batch in so many parts one after the other, or with another number of workers."""
        each = self.fixed + -(-self.rows // parts) * self.row
        return self.shared + (self.workers if workers is None else workers) * each


def device_needs(experiment: Experiment, plan: Plan, model: Footprint) -> Needs:
    """Of one worker, where the model is: weights, gradients, what Horovod fuses, the optimizer's state and a batch."""
    fused = min(model.gradients, int(experiment.horovod.fusion_threshold_mb * 2**20))
    fixed = model.weights + model.gradients + fused + state_bytes(experiment, model)
    return Needs(0, fixed, model.row, min(plan.batch_size, plan.train_rows), 1)


def machine_needs(experiment: Experiment, plan: Plan, model: Footprint, data: int) -> Needs:
    """Of all workers on one machine, with a local Ray, `data` bytes of arrays in its shared memory and rank 0's copy of a
    checkpoint that is being written. Without Ray each worker has the arrays."""
    copied = 2 * checkpoint_bytes(experiment, model) if experiment.checkpoint.enabled else 0
    shared, each, workers = RAY + RANK_0 + copied + data, WORKER, plan.num_workers
    if experiment.executor.name is ExecutorName.horovodrun:
        shared, each = RANK_0 + copied, WORKER + data
    if plan.resources.use_gpu:
        return Needs(shared, each, 0, 0, workers)
    device = device_needs(experiment, plan, model)
    return Needs(shared, each + device.fixed, device.row, device.rows, workers)


def fitting(needs: Needs, data: int, free: int) -> int:
    """How many such trainings `free` bytes hold, at least one: Ray and the `data` are there once."""
    once = RAY + data
    return max(1, (free - once) // (needs.total() - once))


def checkpoint_bytes(experiment: Experiment, model: Footprint) -> int:
    """Of a checkpoint: the weights as safetensors, and all that goes on from them."""
    return model.weights + state_bytes(experiment, model)


def kept_bytes(experiment: Experiment, model: Footprint) -> int:
    """Of all checkpoints in the run's folder at the fullest moment, the one that is being written among them."""
    settings = experiment.checkpoint
    if not settings.enabled:
        return 0
    return (settings.keep + settings.keep_best + 1) * checkpoint_bytes(experiment, model)


def in_words(number: int) -> str:
    """Bytes, as people say them."""
    return f"{number / GB:.1f} GB" if number >= GB else f"{max(1, round(number / MB))} MB"
