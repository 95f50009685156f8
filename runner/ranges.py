"""What the types of schema.py do not say: ranges, and settings that exclude each other or need another machine."""

from __future__ import annotations

import math
from typing import Any

from runner.errors import nearest, refuse
from runner.schema import CHECKS, Experiment, Op, Task

AT_LEAST = {
    "executor.num_hosts": 1,
    "executor.num_workers_per_host": 1,
    "scaling.num_workers": 1,
    "trainer.epochs": 1,
    "trainer.max_steps": 1,
    "trainer.batch_size": 1,
    "trainer.accumulation_steps": 1,
    "trainer.limit_batches": 1,
    "trainer.validate_every_epochs": 1,
    "trainer.validate_every_steps": 1,
    "trainer.patience": 1,
    "trainer.profile_steps": 1,
    "trainer.max_failures": 0,
    "checkpoint.every_epochs": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.keep": 2,  # where the newest is damaged there is one before it
    "checkpoint.keep_best": 1,
    "lr_scaling.base_batch_size": 1,
    "dataset.limit_rows": 1,
    "dataset.loader_workers": 0,
    "dataset.shuffle_rows": 1,
    "horovod.groups": 1,
    "executor.min_workers": 1,
    "horovod.fusion_threshold_mb": 0,
    "horovod.cache_capacity": 0,
    "horovod.timeout_s": 1,
    "horovod.placement_group_timeout_s": 1,
    "horovod.gloo_timeout_s": 1,
    "horovod.stall_warning_s": 0,
    "horovod.stall_shutdown_s": 0,
    "scheduler.warmup_epochs": 0,
    "scheduler.warmup_steps": 0,
    "trainer.min_delta": 0,
    "scaling.resources_per_worker.GPU": 0,
    "search.trials": 1,
    "search.seed": 0,
    "search.min_epochs": 1,
    "search.reduction": 2,
    "search.population": 2,
    "search.perturb_every_epochs": 1,
    "sweep.max_concurrent": 1,
}
ADASUM_RULE = "runner.lr_scaling.adasum"
ABOVE_ZERO = {  # and what to type
    "optimizer.lr": 0.1,
    "horovod.gradient_predivide_factor": 1.0,
    "horovod.cycle_time_ms": 1.0,
    "tracking.flush_seconds": 1.0,
    "trainer.clip_norm": 1.0,
    "trainer.clip_value": 1.0,
    "trainer.watchdog_seconds": 300,
    "checkpoint.every_minutes": 10,
    "scaling.resources_per_worker.CPU": 1,
}


def check_values(experiment: Experiment) -> None:
    """Raise ConfigError for the first value that cannot be."""
    for key, low in AT_LEAST.items():
        value = _dotted(experiment, key)
        if value is not None and not (value >= low and math.isfinite(value)):
            raise refuse(
                key, value, f"must be {low} or more", f"{key}={max(low, 1) if 'GPU' in key else low}"
            )
    for key, instead in ABOVE_ZERO.items():
        value = _dotted(experiment, key)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise refuse(key, value, "must be a finite number above 0", f"{key}={instead}")
    smoothing, decay = experiment.loss.label_smoothing, experiment.trainer.ema_decay
    if not 0 <= smoothing < 1:
        raise refuse(
            "loss.label_smoothing", smoothing, "must be from 0 to below 1", "loss.label_smoothing=0.1"
        )
    if decay is not None and not 0 < decay < 1:
        raise refuse("trainer.ema_decay", decay, "must be between 0 and 1", "trainer.ema_decay=0.999")
    search = experiment.search
    if not 0 < search.quantile <= 0.5:
        raise refuse("search.quantile", search.quantile, "must be above 0, to 0.5", "search.quantile=0.25")
    if not 0 <= search.resample <= 1:
        raise refuse("search.resample", search.resample, "must be from 0 to 1", "search.resample=0.25")
    name = experiment.tracking.run_name
    if name is not None and (not name.strip() or "/" in name or ".." in name):
        raise refuse(
            "tracking.run_name", name, "must be a name without / and ..", "tracking.run_name=first-try"
        )
    for check in experiment.skip_checks:
        if check not in CHECKS:
            close = nearest(check, CHECKS) or CHECKS[0]
            raise refuse(
                "skip_checks",
                check,
                f"the checks that can be left out are {', '.join(CHECKS)}",
                f"skip_checks=[{close}]",
            )
    horovod = experiment.horovod
    if horovod.ssh_str is not None and horovod.ssh_identity_file is None:
        why = "Horovod writes it into a file, which has no name"
        raise refuse("horovod.ssh_str", "…", why, "horovod.ssh_identity_file=…")
    check_adasum(experiment)
    check_warm_up(experiment)
    check_loss(experiment)


def check_adasum(experiment: Experiment) -> None:
    instead = []
    if experiment.horovod.op is Op.adasum:
        instead.append("horovod.op=average")
    if experiment.lr_scaling.target.get("_target_") == ADASUM_RULE:
        instead.append("lr_scaling=sqrt")
    if instead:
        key = "horovod.op" if experiment.horovod.op is Op.adasum else "lr_scaling"
        why = "Adasum needs a Horovod with MPI, this one uses Gloo or NCCL"
        raise refuse(key, "adasum", why, " ".join(instead))


def check_warm_up(experiment: Experiment) -> None:
    """Of the scheduler's own warm-up; that of a rule is known when the plan is made (`check_rule_warm_up`)."""
    scheduler, trainer = experiment.scheduler, experiment.trainer
    if scheduler.warmup_steps is not None:
        if scheduler.warmup_epochs:
            raise refuse(
                "scheduler.warmup_steps",
                scheduler.warmup_steps,
                f"scheduler.warmup_epochs={scheduler.warmup_epochs:g} is set too",
                "scheduler.warmup_epochs=0",
            )
        if trainer.max_steps is not None and scheduler.warmup_steps > trainer.max_steps:
            raise refuse(
                "scheduler.warmup_steps",
                scheduler.warmup_steps,
                f"trainer.max_steps={trainer.max_steps} are fewer",
                f"scheduler.warmup_steps={trainer.max_steps}",
            )
    if (
        trainer.max_steps is None
        and scheduler.warmup_epochs is not None
        and scheduler.warmup_epochs > trainer.epochs
    ):
        raise refuse(
            "scheduler.warmup_epochs",
            scheduler.warmup_epochs,
            f"trainer.epochs={trainer.epochs} are fewer",
            f"scheduler.warmup_epochs={trainer.epochs}",
        )


def check_rule_warm_up(rule: str, warmup_epochs: float, training_epochs: float) -> None:
    """The warm-up that a scaling rule brings with it must end within the training."""
    if warmup_epochs > training_epochs:
        why = f"its warm-up of {warmup_epochs:g} epochs is longer than the training of {training_epochs:.4g}"
        raise refuse("lr_scaling", rule, why, f"scheduler.warmup_epochs={training_epochs:.4g}")


def check_loss(experiment: Experiment) -> None:
    loss, task = experiment.loss, experiment.dataset.task
    weights = loss.class_weights
    if loss.target and (weights is not None or loss.label_smoothing):
        key, value = (
            ("class_weights", weights) if weights is not None else ("label_smoothing", loss.label_smoothing)
        )
        raise refuse(f"loss.{key}", value, "a loss with a _target_ takes its own arguments", f"~loss.{key}")
    if weights is not None:
        if task is not Task.classification:
            raise refuse(
                "loss.class_weights", weights, f"a {task.value} has no classes", "loss.class_weights=null"
            )
        is_list = isinstance(weights, list) and all(
            isinstance(weight, int | float) and weight >= 0 and math.isfinite(weight) for weight in weights
        )
        if weights != "balanced" and not (is_list and any(weights)):
            raise refuse(
                "loss.class_weights",
                weights,
                "must be balanced, or a list with a weight of 0 or more for each class",
                "loss.class_weights=balanced",
            )
    if loss.label_smoothing and task is Task.regression:
        raise refuse(
            "loss.label_smoothing",
            loss.label_smoothing,
            "a regression has no labels",
            "loss.label_smoothing=0",
        )


def _dotted(experiment: Experiment, key: str) -> Any:
    found: Any = experiment
    for part in key.split("."):
        found = getattr(found, part)
    return found
