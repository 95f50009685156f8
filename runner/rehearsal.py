"""What the workers will do first, done once on the driver: to refuse in a second what they would refuse after a launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from runner import lightning, parameters
from runner.errors import ConfigError, own_line
from runner.ingest.arrays import Data
from runner.ingest.batches import placement
from runner.ingest.tensors import as_tensors
from runner.learner import build_model
from runner.objective import objective
from runner.parameters import Weights
from runner.plan import DataFacts, Plan
from runner.schema import Experiment

NUMBERS = 2**16  # in the batch that is tried, about: it takes milliseconds


def rehearse(
    experiment: Experiment,
    plan: Plan,
    data: DataFacts,
    initial: Weights | None,
    inputs: Tensor,
    targets: Tensor,
) -> None:
    """Build on the driver what every worker will, and take a batch through it, to refuse now what it would refuse then.

    But for optimizer and scheduler: the first optimizer of a process makes torch import its compiler, most of a second.
    Raises ConfigError.
    """
    model = build_model(experiment, plan, data, torch.device("cpu"), initial)
    if not lightning.is_module(model):
        learns = objective(experiment, data)
        parameters.groups(
            model, plan.learning_rate.configured(experiment.optimizer), plan.learning_rate.multiplier
        )
        with torch.no_grad(), tried(experiment, plan.for_model(data), inputs, targets):
            learns.losses(model.eval(), inputs, targets)


@contextmanager
def tried(
    experiment: Experiment, facts: Mapping[str, Any], inputs: Tensor, targets: Tensor
) -> Iterator[None]:
    """What a batch makes the model, its loss or its metrics raise is one line. `facts` are what the data and the plan say
    of the model's arguments."""
    try:
        yield
    except Exception as error:
        given = {name: value for name, value in experiment.model.target.items() if value is not None}
        others = [f"model.{name}=null" for name in given if name in facts and given[name] != facts[name]]
        instead = f"; type {' '.join(others)} (the data and the plan know it)" if others else ""
        raise ConfigError(
            f"model={experiment.model.target['_target_']}: a batch with inputs {tuple(inputs.shape)} and targets "
            f"{tuple(targets.shape)} failed with {type(error).__name__}: {' '.join(str(error).split())} "
            f"({own_line(error)}){instead}"
        ) from error


def first_batch(experiment: Experiment, plan: Plan, data: Data) -> tuple[Tensor, Tensor]:
    """As many of the first rows as a worker takes in a step, or fewer where they are large."""
    place = placement(experiment, torch.device("cpu"))
    numbers = math.prod(data.facts.input_shape)
    rows = min(plan.batch_size, plan.train_rows, max(2, NUMBERS // max(1, numbers)))
    inputs, targets = as_tensors(data.splits["train"].read(0, rows))
    return place(inputs), place(targets)
