"""Options that may change while a training goes on: numbers that change no shape, no row, no batch and no length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from runner.ledger import plan_learning_rate
from runner.plan import Plan
from runner.schema import Experiment

OPTIMIZER = "optimizer."
FIXED = ("_target_", "param_groups", "decay_norms_and_biases")  # of the optimizer: they are its structure
OTHERS = ("trainer.clip_norm", "trainer.clip_value", "loss.label_smoothing")
MAY_CHANGE = f"numbers of the optimizer (optimizer.lr, …), {', '.join(OTHERS)}"
Options = Mapping[str, float]  # by key of the config


class Bounds(NamedTuple):
    """An interval, both ends in it; of whole numbers where both are ints."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


def may_change(key: str) -> bool:
    group, _, name = key.partition(".")
    return key in OTHERS or (f"{group}." == OPTIMIZER and name.isidentifier() and name not in FIXED)


def of_optimizer(keys: Iterable[str]) -> tuple[str, ...]:
    """The names that these keys have in the optimizer's parameter groups. Its LR is the schedule's."""
    names = (key.removeprefix(OPTIMIZER) for key in keys if key.startswith(OPTIMIZER))
    return tuple(name for name in names if name != "lr")


def with_options(experiment: Experiment, options: Options) -> Experiment:
    for key, value in options.items():
        group, _, name = key.partition(".")
        node: Any = getattr(experiment, group)
        if name in {field.name for field in fields(node)}:
            node = replace(node, **{name: value})
        else:
            node = replace(node, target={**node.target, name: value})
        experiment = replace(experiment, **{group: node})
    return experiment


def with_its_rate(plan: Plan, experiment: Experiment) -> Plan:
    """The plan with the learning rate of an experiment that differs in nothing but such options."""
    return replace(plan, learning_rate=plan_learning_rate(experiment))
