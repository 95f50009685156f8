"""The LR ledger: which learning rate a run has, and why. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from runner import build
from runner.schema import Experiment, Scheduler

COLD_START = 0.1  # of the LR: where a warm-up starts when no rule scaled it up


@dataclass(frozen=True)
class LearningRate:
    """One line of it."""

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
