"""Experiment → Plan: the arithmetic of a run, pure and in one place.

global_batch_size = num_workers × batch_size × accumulation_steps; κ = global_batch_size / base_batch_size.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from runner import build
from runner.errors import refuse
from runner.schema import Experiment, Ingest, Mode, Scheduler

MIN_CPU_SHARE = 0.1  # ten processes on a core is where sharing stops being of use
COLD_START = 0.1  # of the LR: where a warm-up starts when no rule scaled it up
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
class LearningRate:
    """The ledger: which LR the run has, and why."""

    base: float
    base_batch_size: int
    global_batch_size: int
    rule: str
    multiplier: float
    warmup_epochs: float
    warmup_start: float  # fraction of the scaled LR at the first step
    warmup_steps: int | None = None  # instead of warmup_epochs

    @property
    def kappa(self) -> float:
        return self.global_batch_size / self.base_batch_size

    @property
    def scaled(self) -> float:
        return self.base * self.multiplier

    def line(self) -> str:
        line = (
            f"lr {self.base:g} (base, batch {self.base_batch_size}) × {self.multiplier:g} "
            f"({self.rule}: {self.global_batch_size}/{self.base_batch_size}) = {self.scaled:g}"
        )
        if self.warmup_steps or self.warmup_epochs:
            length = f"{self.warmup_steps} steps" if self.warmup_steps else f"{self.warmup_epochs:g} epochs"
            line += f", warm-up {length} from {self.scaled * self.warmup_start:g}"
        return line


@dataclass(frozen=True)
class Goal:
    """The metric that selects the best checkpoint, ends a training early and drives a plateau scheduler."""

    monitor: str = "val/loss"
    maximise: bool = False
    patience: int | None = None  # validations
    min_delta: float = 0.0


@dataclass(frozen=True)
class Plan:
    resources: ResourcePlan
    batch_size: int
    accumulation_steps: int
    global_batch_size: int
    epochs: int  # begun, when total_steps ends within one
    steps_per_epoch: int
    total_steps: int
    validate_every: int  # steps
    train_rows: int
    val_rows: int
    dropped_rows: int  # rows an epoch that drop_last or limit_batches leaves out
    in_features: int
    out_features: int
    learning_rate: LearningRate
    goal: Goal = Goal()

    @property
    def num_workers(self) -> int:
        return self.resources.num_workers

    @property
    def epoch_rows(self) -> int:
        """Rows that an epoch uses, each once."""
        return self.train_rows - self.dropped_rows

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
            length = self.total_steps - self.warmup_steps
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
        del plan["goal"]  # the config says it
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


def plan_learning_rate(experiment: Experiment) -> LearningRate:
    trainer, scaling = experiment.trainer, experiment.lr_scaling
    global_batch_size = experiment.scaling.num_workers * trainer.batch_size * trainer.accumulation_steps
    base_batch_size = scaling.base_batch_size or trainer.batch_size
    kappa = global_batch_size / base_batch_size
    multiplier = build.build(scaling.target, kappa)
    # Scaling down is gentler than the base LR: a warm-up would start above the target.
    warmup = experiment.scheduler if kappa >= 1 else Scheduler()
    start = experiment.scheduler.warmup_start
    return LearningRate(
        base=experiment.optimizer.lr,
        base_batch_size=base_batch_size,
        global_batch_size=global_batch_size,
        rule=scaling.target["_target_"].rpartition(".")[2],
        multiplier=multiplier,
        warmup_epochs=warmup.warmup_epochs,
        warmup_start=(1 / multiplier if multiplier > 1 else COLD_START) if start is None else start,
        warmup_steps=warmup.warmup_steps,
    )


def make_plan(experiment: Experiment, data: DataFacts, resources: ResourcePlan) -> Plan:
    """Raises ConfigError when the data does not allow a single step."""
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
    total_steps = trainer.max_steps or trainer.epochs * steps
    checkpoint = experiment.checkpoint
    return Plan(
        resources=resources,
        batch_size=trainer.batch_size,
        accumulation_steps=trainer.accumulation_steps,
        global_batch_size=batch,
        epochs=math.ceil(total_steps / steps),
        steps_per_epoch=steps,
        total_steps=total_steps,
        validate_every=trainer.validate_every_steps or trainer.validate_every_epochs * steps,
        train_rows=data.train_rows,
        val_rows=data.val_rows,
        dropped_rows=max(0, data.train_rows - steps * batch),
        in_features=data.in_features,
        out_features=data.out_features,
        learning_rate=learning_rate,
        goal=Goal(checkpoint.monitor, checkpoint.mode is Mode.max, trainer.patience, trainer.min_delta),
    )
