"""Experiment → Plan: the arithmetic of a run, pure and in one place.

global_batch_size = num_workers × batch_size × accumulation_steps; κ = global_batch_size / base_batch_size.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.errors import refuse
from runner.ledger import LearningRate, plan_learning_rate
from runner.schema import Experiment, Ingest, Mode, Scheduler

MIN_CPU_SHARE = 0.1  # ten processes on a core is where sharing stops being of use
MAX_EVAL_BATCH = 1024  # rows; evaluation needs no gradients, so its batches may be larger


@dataclass(frozen=True)
class DataFacts:
    """What the plan needs to know of the data. Shapes are of one row."""

    train_rows: int
    val_rows: int
    input_shape: tuple[int, ...]
    out_features: int  # number of classes, tokens, labels, or regression targets
    class_counts: tuple[int, ...] | None = None  # training rows of each class
    class_names: tuple[str, ...] | None = None

    @property
    def in_features(self) -> int:
        return math.prod(self.input_shape)

    def identity(self) -> dict[str, Any]:
        """What a run that goes on must find again; JSON."""
        shape, counts = list(self.input_shape), self.class_counts and list(self.class_counts)
        rows = {"train_rows": self.train_rows, "val_rows": self.val_rows}
        return {**rows, "input_shape": shape, "out_features": self.out_features, "class_counts": counts}

    def for_model(self) -> dict[str, Any]:
        """The constructor arguments that a model, a loss or a metric may leave to the data."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "input_shape": self.input_shape,
            "context_length": self.input_shape[0] if self.input_shape else None,
            **dict.fromkeys(("vocab_size", "num_classes", "num_labels", "num_outputs"), self.out_features),
        }


@dataclass(frozen=True)
class Machine:
    """What there is to run on: one machine, or a Ray cluster (whose totals these are)."""

    cpus: float
    gpus: float = 0.0
    horovod_gpu: bool = False  # the Horovod build has NCCL
    is_cluster: bool = False

    @property
    def name(self) -> str:
        return "the cluster" if self.is_cluster else "this machine"


@dataclass(frozen=True)
class ResourcePlan:
    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    reserved_cpus: float = 0.0  # kept free for Ray Data's tasks

    @property
    def use_gpu(self) -> bool:
        return self.gpus_per_worker > 0

    @property
    def threads(self) -> int:
        """Torch threads a worker; from the config's CPUs alone, so that the numbers do not depend on the machine."""
        return max(1, int(self.cpus_per_worker))

    def line(self) -> str:
        gpus = f" + {self.gpus_per_worker:g} GPU" if self.use_gpu else ""
        reserved = f", {self.reserved_cpus:g} CPU free for Ray Data" if self.reserved_cpus else ""
        return f"{self.num_workers} workers × {self.cpus_per_worker:g} CPU{gpus}{reserved}"


@dataclass(frozen=True)
class Goal:
    """The metric that selects the best checkpoint, ends a training early and drives a plateau scheduler."""

    monitor: str = "val/loss"
    maximise: bool = False
    patience: int | None = None  # validations
    min_delta: float = 0.0


@dataclass(frozen=True)
class Position:
    """Where a training stands: epochs and steps that are done, and the rows used of the epoch that has begun."""

    epoch: int = 0
    step: int = 0
    rows: int = 0


START = Position()


@dataclass(frozen=True)
class Plan:
    resources: ResourcePlan
    batch_size: int
    accumulation_steps: int
    global_batch_size: int
    epochs: int  # begun, when total_steps ends within one
    steps_per_epoch: int
    total_steps: int
    validate_every_epochs: int
    validate_every_steps: int | None  # instead
    train_rows: int
    val_rows: int
    dropped_rows: int  # rows an epoch that drop_last or limit_batches leaves out
    in_features: int
    out_features: int
    learning_rate: LearningRate
    goal: Goal = Goal()
    drop_last: bool = False
    # A run that goes on with another global batch has other steps behind it than its schedule, which stands where it
    # would stand if the batch had always been this one.
    schedule_offset: int = 0

    @property
    def num_workers(self) -> int:
        return self.resources.num_workers

    @property
    def epoch_rows(self) -> int:
        """Rows that an epoch uses, each once."""
        return self.train_rows - self.dropped_rows

    def steps_left(self, done: int) -> int:
        """Steps of the rest of an epoch of which `done` rows are used; those of a whole epoch for 0."""
        return self.steps_of(max(0, self.epoch_rows - done))

    def steps_of(self, rows: int) -> int:
        """Steps that so many rows are good for."""
        return rows // self.global_batch_size if self.drop_last else math.ceil(rows / self.global_batch_size)

    def rows_at_end(self, done: int) -> int:
        """Rows of an epoch that are used when it ends, `done` of them already."""
        return min(max(done, self.epoch_rows), done + self.steps_left(done) * self.global_batch_size)

    def offset_at(self, position: Position) -> int:
        """Steps that a training at `position` would have behind it if the batch had always been this one, less those it
        has; as great at every later position of the same plan."""
        epochs, left = position.epoch, 0
        if position.rows:
            epochs, left = epochs + 1, self.steps_left(position.rows)
        return epochs * self.steps_per_epoch - left - position.step

    def validates(self, epoch: int, step: int, ends_epoch: bool) -> bool:
        """Whether to validate after `step` steps and `epoch` whole epochs."""
        if step >= self.total_steps:
            return True
        if self.validate_every_steps is not None:
            return step % self.validate_every_steps == 0
        return ends_epoch and epoch % self.validate_every_epochs == 0

    @property
    def warmup_steps(self) -> int:
        if self.learning_rate.warmup_steps is not None:
            return self.learning_rate.warmup_steps
        return round(self.learning_rate.warmup_epochs * self.steps_per_epoch)

    def for_model(self, data: DataFacts) -> dict[str, Any]:
        """The data's facts, and the length of the training for a module with a schedule of its own."""
        return {**data.for_model(), "total_steps": self.total_steps}

    def for_scheduler(self, scheduler: Scheduler) -> dict[str, int]:
        """The lengths that a torch scheduler may leave to the plan, in its own interval, after the warm-up."""
        if scheduler.interval.value == "epoch":
            length = self.epochs - self.warmup_steps // self.steps_per_epoch
        else:
            length = self.total_steps + self.schedule_offset - self.warmup_steps
        length = max(1, length)
        return {"T_max": length, "total_iters": length, "total_steps": length}

    def lines(self) -> list[str]:
        batch = f"{self.num_workers} workers × {self.batch_size} rows"
        if self.accumulation_steps > 1:
            batch += f" × {self.accumulation_steps} accumulated"
        rows = f"{self.train_rows} training rows, {self.val_rows} validation rows"
        if self.dropped_rows:
            rows += f" ({self.dropped_rows} dropped an epoch)"
        return [
            f"batch {self.global_batch_size} = {batch}",
            f"steps {self.total_steps} = {self._epochs()} epochs × {self.steps_per_epoch}; {rows}",
            f"resources {self.resources.line()}",
            self.learning_rate.line(),
        ]

    def _epochs(self) -> str:
        return f"{self.total_steps / self.steps_per_epoch:.4g}"

    def flat(self) -> dict[str, Any]:
        """One level of numbers and strings for a tracker."""
        plan = asdict(self)
        resources, learning_rate = plan.pop("resources"), plan.pop("learning_rate")
        for key in ("goal", "drop_last", "schedule_offset"):  # the config says them
            del plan[key]
        return {
            **{f"plan/{key}": value for key, value in {**plan, **resources}.items()},
            **{f"plan/lr_{key}": value for key, value in learning_rate.items()},
            "plan/lr_scaled": self.learning_rate.scaled,
        }


def plan_resources(experiment: Experiment, machine: Machine) -> ResourcePlan:
    """CPUs and GPUs a worker. An explicit number in the config is taken as it is; preflight judges it."""
    scaling = experiment.scaling
    workers = scaling.num_workers
    gpus = scaling.resources_per_worker.GPU
    if scaling.use_gpu is False:
        gpus = 0.0
    if gpus is None:
        wanted = machine.gpus > 0 and machine.horovod_gpu if scaling.use_gpu is None else scaling.use_gpu
        gpus = 1.0 if wanted else 0.0
    # Ray Data reads with tasks of its own: with every CPU held by a worker they would wait for ever.
    reserved = 1.0 if experiment.dataset.ingest is Ingest.ray_data else 0.0
    cpus = scaling.resources_per_worker.CPU
    if cpus is None:
        # A machine is shared by fractions; a cluster (which may grow) gives whole CPUs.
        share = math.floor((machine.cpus - reserved) / workers * 100) / 100
        cpus = 1.0 if machine.is_cluster or share >= 1 else max(MIN_CPU_SHARE, share)
    return ResourcePlan(workers, cpus, gpus, reserved)


def make_plan(
    experiment: Experiment, data: DataFacts, resources: ResourcePlan, position: Position = START
) -> Plan:
    """The plan of a training that stands at `position`. Raises ConfigError when the data does not allow a single step."""
    trainer = experiment.trainer
    learning_rate = plan_learning_rate(experiment)
    batch = learning_rate.global_batch_size
    steps = data.train_rows // batch if experiment.dataset.drop_last else math.ceil(data.train_rows / batch)
    if steps == 0:
        largest = data.train_rows // (resources.num_workers * trainer.accumulation_steps)
        raise refuse(
            "trainer.batch_size",
            trainer.batch_size,
            f"{data.train_rows} training rows do not fill one global batch of {batch} and dataset.drop_last=true",
            f"trainer.batch_size={max(1, largest)}",
        )
    if trainer.limit_batches is not None:
        steps = min(steps, trainer.limit_batches)
    checkpoint = experiment.checkpoint
    plan = Plan(
        resources=resources,
        batch_size=trainer.batch_size,
        accumulation_steps=trainer.accumulation_steps,
        global_batch_size=batch,
        epochs=trainer.epochs,
        steps_per_epoch=steps,
        total_steps=0,
        validate_every_epochs=trainer.validate_every_epochs,
        validate_every_steps=trainer.validate_every_steps,
        train_rows=data.train_rows,
        val_rows=data.val_rows,
        dropped_rows=max(0, data.train_rows - steps * batch),
        in_features=data.in_features,
        out_features=data.out_features,
        learning_rate=learning_rate,
        goal=Goal(checkpoint.monitor, checkpoint.mode is Mode.max, trainer.patience, trainer.min_delta),
        drop_last=experiment.dataset.drop_last,
    )
    return _lengths(plan, trainer.max_steps, position)


def _lengths(plan: Plan, max_steps: int | None, position: Position) -> Plan:
    """With `total_steps`, counted on from where the training stands."""
    begun = 1 if position.rows else 0
    left = plan.steps_left(position.rows) if begun else 0
    before = position.epoch + begun  # epochs until the next one starts
    if max_steps is None:
        epochs, total = plan.epochs, position.step + left + (plan.epochs - before) * plan.steps_per_epoch
    else:
        total = max_steps
        epochs = before + math.ceil(max(0, max_steps - position.step - left) / plan.steps_per_epoch)
    return replace(plan, epochs=epochs, total_steps=total, schedule_offset=plan.offset_at(position))
