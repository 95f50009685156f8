"""What a run that goes on must agree with: the checkpoint it goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.errors import ConfigError, refuse
from runner.plan import START, DataFacts, Plan, Position
from runner.resources import workers_in_words
from runner.schema import Experiment, Ingest

Manifest = dict[str, Any]


def newest(run_dir: Path) -> Manifest | None:
    """The manifest of the newest sound checkpoint. Raises ConfigError where there are some, and all are damaged."""
    from runner import checkpoint  # which imports torch

    rejected: list[str] = []
    path = checkpoint.latest(run_dir / "checkpoints", rejected.append)
    if path is None and rejected:
        raise ConfigError(f"{rejected[0].removeprefix('warning: ')}; start a new run")
    return None if path is None else checkpoint.read_manifest(path)


def position(manifest: Manifest | None) -> Position:
    if manifest is None:
        return START
    return Position(manifest["epoch"], manifest["step"], manifest["rows"])


def check(
    manifest: Manifest, experiment: Experiment, plan: Plan, data: DataFacts, is_finished: bool
) -> str | None:
    """What changes for the run that goes on, in words, or None. Raises ConfigError where it cannot go on so.

    A run that was killed after its last step is not `is_finished`: what comes after the training is still to be done.
    """
    step, workers = manifest["step"], manifest["num_workers"]
    progress: Any = manifest.get("progress", step)
    if manifest["data"] != data.identity():
        raise ConfigError(
            f"dataset: the data changed since step {step}: {manifest['data']} then, {data.identity()} now; "
            "start a new run"
        )
    if plan.total_steps < step or (plan.is_over(progress) and is_finished):
        trainer = experiment.trainer
        key = "trainer.epochs" if trainer.max_steps is None else "trainer.max_steps"
        value = trainer.epochs if trainer.max_steps is None else trainer.max_steps
        ended = manifest["epoch"] + (0 if plan.steps_left(manifest["rows"]) else 1)
        more = ended + 1 if trainer.max_steps is None else step + plan.steps_per_epoch
        if plan.learning_rate.is_adaptive:  # its length is counted in the base batch
            more = value + (1 if trainer.max_steps is None else plan.schedule_steps_per_epoch)
        raise refuse(
            key, value, f"the run has taken its {step} steps, {manifest['epoch']} epochs", f"{key}={more}"
        )
    stale, patience = manifest["stale"], plan.goal.patience
    if is_finished and patience is not None and stale >= patience:
        raise refuse(
            "trainer.patience",
            patience,
            f"the run stopped early, after {stale} validations without a better {plan.goal.monitor}",
            f"trainer.patience={stale + 1}",
        )
    if plan.num_workers == workers:
        return None
    if experiment.dataset.ingest is Ingest.ray_data and manifest["rows"]:
        raise refuse(
            "scaling.num_workers",
            plan.num_workers,
            f"the checkpoint lies within an epoch that ray_data dealt to {workers} workers",
            f"scaling.num_workers={workers}",
        )
    batch = manifest["global_batch_size"]
    kind = "scale-invariant steps" if plan.learning_rate.is_adaptive else "steps"
    return (
        f"from step {step} on {workers_in_words(plan.num_workers)} instead of {workers}: global batch {plan.global_batch_size} "
        f"instead of {batch}, {plan.total_steps} {kind} in all; {plan.learning_rate.line()}"
    )
