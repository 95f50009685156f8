"""The LR ledger: which learning rate a run has, and why. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner import build
from runner.errors import ConfigError, refuse
from runner.lr_scaling import RuleError, Scaled
from runner.schema import Experiment, Optimizer

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
    changes: dict[str, tuple[Any, Any]] = field(
        default_factory=dict
    )  # an optimizer's argument: (base, scaled)
    is_adaptive: bool = False  # × a gain from 1 to κ besides, in every step

    @property
    def kappa(self) -> float:
        return self.global_batch_size / self.base_batch_size

    @property
    def scaled(self) -> float:
        return self.base * self.multiplier

    def line(self) -> str:
        line = f"lr {self.base:g} (base, batch {self.base_batch_size}) × "
        if self.is_adaptive and self.kappa > 1:
            line += f"1 to {self.kappa:g} ({self.rule}: gain measured each step)"
            line += f" = {self.scaled:g} to {self.scaled * self.kappa:g}"
        else:
            line += f"{self.multiplier:g} ({self.rule}: {self.global_batch_size}/{self.base_batch_size})"
            line += f" = {self.scaled:g}"
        for name, (base, scaled) in self.changes.items():
            line += f", {name} {_text(base)} → {_text(scaled)}"
        if self.warmup_steps or self.warmup_epochs:
            length = f"{self.warmup_steps} steps" if self.warmup_steps else f"{self.warmup_epochs:g} epochs"
            line += f", warm-up {length} from {self.scaled * self.warmup_start:g}"
        return line

    def flat(self) -> dict[str, Any]:
        """One level of numbers and strings for a tracker, the line among them."""
        numbers = {key: value for key, value in vars(self).items() if key not in ("changes", "is_adaptive")}
        changed = {name: scaled for name, (_, scaled) in self.changes.items()}
        every = {f"lr_{key}": value for key, value in {**numbers, **changed, "scaled": self.scaled}.items()}
        return {"lr": self.line(), **every}

    def scaled_options(self) -> dict[str, Any]:
        """The optimizer's arguments that the rule changes."""
        return {name: scaled for name, (_, scaled) in self.changes.items()}

    def configured(self, optimizer: Optimizer) -> Optimizer:
        """With the arguments that the rule changes; its LR is still the base's."""
        return replace(optimizer, target={**optimizer.target, **self.scaled_options()})


def plan_learning_rate(experiment: Experiment) -> LearningRate:
    """Raises ConfigError where the rule does not hold."""
    trainer, scaling, scheduler = experiment.trainer, experiment.lr_scaling, experiment.scheduler
    global_batch_size = experiment.scaling.num_workers * trainer.batch_size * trainer.accumulation_steps
    base_batch_size = scaling.base_batch_size or trainer.batch_size
    kappa = global_batch_size / base_batch_size
    own = {key: value for key, value in build.arguments(scaling.target).items() if value is not None}
    options = {**build.options(experiment.optimizer.target), **own}
    scaled = _scaled(experiment, kappa, base_batch_size, options)
    if scaled.is_adaptive and base_batch_size != trainer.batch_size:
        raise refuse(
            "lr_scaling.base_batch_size",
            base_batch_size,
            f"{rule_name(experiment)} measures the gain over the batch of one worker, trainer.batch_size={trainer.batch_size}",
            f"lr_scaling.base_batch_size=null, or trainer.batch_size={base_batch_size}",
        )
    for name in scaled.optimizer:
        for index, group in enumerate(experiment.optimizer.param_groups):
            if name in group:
                key = f"optimizer.param_groups[{index}].{name}"
                why = f"{rule_name(experiment)} scales the optimizer's {name}, which a group may not have of its own"
                raise refuse(key, group[name], why, "lr_scaling=sqrt")
    start = scaled.warmup_start if scheduler.warmup_start is None else scheduler.warmup_start
    if start is None:
        start = 1 / scaled.multiplier if scaled.multiplier > 1 else COLD_START
    warmup_steps, warmup_epochs = scheduler.warmup_steps, scheduler.warmup_epochs
    if takes_rule_warm_up(experiment):
        warmup_epochs = scaled.warmup_epochs
    if kappa < 1:  # Scaling down is gentler than the base LR: a warm-up would start above the target.
        warmup_steps, warmup_epochs = None, None
    return LearningRate(
        base=experiment.optimizer.lr,
        base_batch_size=base_batch_size,
        global_batch_size=global_batch_size,
        rule=rule_name(experiment),
        multiplier=scaled.multiplier,
        warmup_epochs=warmup_epochs or 0.0,
        warmup_start=start,
        warmup_steps=warmup_steps,
        changes={name: (options.get(name), value) for name, value in scaled.optimizer.items()},
        is_adaptive=scaled.is_adaptive,
    )


def rule_name(experiment: Experiment) -> str:
    name: str = experiment.lr_scaling.target["_target_"]
    return name.rpartition(".")[2]


def takes_rule_warm_up(experiment: Experiment) -> bool:
    """Whether the scheduler leaves the warm-up to the rule."""
    return experiment.scheduler.warmup_steps is None and experiment.scheduler.warmup_epochs is None


def _scaled(experiment: Experiment, kappa: float, base_batch_size: int, options: dict[str, Any]) -> Scaled:
    """What the rule says, with what it leaves to the optimizer and the plan filled in."""
    name = rule_name(experiment)
    facts = {**options, "accumulation_steps": experiment.trainer.accumulation_steps}
    try:
        found = build.build(experiment.lr_scaling.target, kappa, facts=facts)
    except RuleError as error:
        raise _refused(experiment, base_batch_size, error) from error
    except Exception as error:  # a user's rule may raise anything
        raise ConfigError(f"lr_scaling={name}: {type(error).__name__}: {error}") from error
    if isinstance(found, Scaled):
        return found
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise refuse(
            "lr_scaling",
            name,
            f"gives a {type(found).__name__}; a number or a runner.lr_scaling.Scaled is needed",
        )
    return Scaled(float(found))


def _refused(experiment: Experiment, base_batch_size: int, error: RuleError) -> ConfigError:
    """In a line: the largest global batch for which the rule holds, and the number of workers that makes it."""
    trainer, why, instead = experiment.trainer, str(error), error.instead
    if instead is None:
        rows = trainer.batch_size * trainer.accumulation_steps  # of one worker's part of a step
        limit = error.below * base_batch_size
        workers = _below(limit / rows)
        why += f"; the largest global batch is {_below(limit)}"
        instead = f"scaling.num_workers={workers}" if workers else "lr_scaling=sqrt"
    return refuse("lr_scaling", rule_name(experiment), why, instead)


def _below(limit: float) -> int:
    """The largest whole number below `limit`, which may be whole but for its last bits."""
    return int(limit - 1e-6 * limit)


def _text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"({', '.join(_text(each) for each in value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)
