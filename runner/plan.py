"""Experiment → Plan: the arithmetic of a run, pure and in one place.

global_batch_size = num_workers × batch_size × accumulation_steps; κ = global_batch_size / base_batch_size.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from runner.errors import refuse
from runner.ledger import LearningRate, plan_learning_rate, takes_rule_warm_up
from runner.ranges import check_rule_warm_up
from runner.resources import ResourcePlan, workers_in_words
from runner.schema import Experiment, Mode, Scheduler

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
class Goal:
    """The metric that selects the best checkpoint, ends a training early and drives a plateau scheduler."""

    monitor: str = "val/loss"
    maximise: bool = False
    patience: int | None = None  # validations
    min_delta: float = 0.0

    def is_better(self, value: float | None, than: float | None, by: float = 0.0) -> bool:
        """Whether `value` is the better one; no value and NaN never are, and `than` no value everything else is."""
        if value is None or math.isnan(value):
            return False
        sign = 1 if self.maximise else -1
        return than is None or sign * value > sign * than + by


def goal_of(experiment: Experiment) -> Goal:
    checkpoint, trainer = experiment.checkpoint, experiment.trainer
    return Goal(checkpoint.monitor, checkpoint.mode is Mode.max, trainer.patience, trainer.min_delta)


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
    total_steps: (
        int  # with AdaScale at most: there the training's length is this many steps of the base batch
    )
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
        has; as great at every later position of the same plan. AdaScale counts in the base batch, which does not change."""
        if self.learning_rate.is_adaptive:
            return 0
        epochs, left = position.epoch, 0
        if position.rows:
            epochs, left = epochs + 1, self.steps_left(position.rows)
        return epochs * self.steps_per_epoch - left - position.step

    def is_over(self, progress: float) -> bool:
        """Whether `progress` steps are the whole training; with AdaScale they are those of the base batch."""
        return progress >= self.total_steps

    def validates(self, epoch: int, step: int, ends_epoch: bool) -> bool:
        """Whether to validate after `step` steps and `epoch` whole epochs, besides the training's end."""
        if self.validate_every_steps is not None:
            return step % self.validate_every_steps == 0
        return ends_epoch and epoch % self.validate_every_epochs == 0

    @property
    def schedule_steps_per_epoch(self) -> int:
        """Steps of an epoch as the schedule and `total_steps` count them: with AdaScale those of the base batch."""
        if self.learning_rate.is_adaptive:
            return math.ceil(self.epoch_rows / self.learning_rate.base_batch_size)
        return self.steps_per_epoch

    @property
    def warmup_steps(self) -> int:
        if self.learning_rate.warmup_steps is not None:
            return self.learning_rate.warmup_steps
        return round(self.learning_rate.warmup_epochs * self.schedule_steps_per_epoch)

    def for_model(self, data: DataFacts) -> dict[str, Any]:
        """The data's facts, and the length of the training for a module with a schedule of its own."""
        return {**data.for_model(), "total_steps": self.total_steps}

    def for_scheduler(self, scheduler: Scheduler) -> dict[str, int]:
        """The lengths that a torch scheduler may leave to the plan, in its own interval, after the warm-up."""
        if scheduler.interval.value == "epoch":
            length = self.epochs - self.warmup_steps // self.schedule_steps_per_epoch
        else:
            length = self.total_steps + self.schedule_offset - self.warmup_steps
        length = max(1, length)
        return {"T_max": length, "total_iters": length, "total_steps": length}

    def lines(self) -> list[str]:
        batch = f"{workers_in_words(self.num_workers)} × {self.batch_size} rows"
        if self.accumulation_steps > 1:
            batch += f" × {self.accumulation_steps} accumulated"
        rows = f"{self.train_rows} training rows, {self.val_rows} validation rows"
        if self.dropped_rows:
            rows += f" ({self.dropped_rows} dropped an epoch)"
        return [
            f"batch {self.global_batch_size} = {batch}",
            f"steps {self.length()}; {rows}",
            f"resources {self.resources.line()}",
            self.learning_rate.line(),
        ]

    def length(self) -> str:
        """How long the training is, in words."""
        epochs = (
            f"{self.total_steps / self.schedule_steps_per_epoch:.4g} epochs × {self.schedule_steps_per_epoch}"
        )
        if not self.learning_rate.is_adaptive:
            return f"{self.total_steps} = {epochs}"
        fewest, most = math.ceil(self.total_steps / self.learning_rate.kappa), self.total_steps
        steps = f"between {fewest} and {most}" if fewest < most else str(most)
        return f"{steps}: {most} scale-invariant steps = {epochs} of batch {self.batch_size}"

    def flat(self) -> dict[str, Any]:
        """One level of numbers and strings for a tracker."""
        plan = asdict(self)
        resources = plan.pop("resources")
        del resources["custom"]
        for key in ("learning_rate", "goal", "drop_last", "schedule_offset"):  # the config says them
            del plan[key]
        return {
            **{f"plan/{key}": value for key, value in {**plan, **resources}.items()},
            **{f"plan/{key}": value for key, value in self.learning_rate.flat().items()},
        }


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
        goal=goal_of(experiment),
        drop_last=experiment.dataset.drop_last,
    )
    plan = _lengths(plan, trainer.max_steps, position)
    if takes_rule_warm_up(experiment):
        length = (plan.total_steps + plan.schedule_offset) / plan.schedule_steps_per_epoch
        check_rule_warm_up(learning_rate.rule, learning_rate.warmup_epochs, length)
    return plan


def _lengths(plan: Plan, max_steps: int | None, position: Position) -> Plan:
    """With `total_steps`, counted on from where the training stands. AdaScale's are not: they are of the base batch."""
    if plan.learning_rate.is_adaptive:
        per_epoch = plan.schedule_steps_per_epoch
        total = plan.epochs * per_epoch if max_steps is None else max_steps
        return replace(plan, epochs=math.ceil(total / per_epoch), total_steps=total)
    begun = 1 if position.rows else 0
    left = plan.steps_left(position.rows) if begun else 0
    before = position.epoch + begun  # epochs until the next one starts
    if max_steps is None:
        epochs, total = plan.epochs, position.step + left + (plan.epochs - before) * plan.steps_per_epoch
    else:
        total = max_steps
        epochs = before + math.ceil(max(0, max_steps - position.step - left) / plan.steps_per_epoch)
    return replace(plan, epochs=epochs, total_steps=total, schedule_offset=plan.offset_at(position))
