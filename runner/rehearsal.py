"""What the workers will do first, done once on the driver: to refuse in a second what they would refuse after a launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from runner import lightning, parameters
from runner.errors import ConfigError, RunnerError, own_line
from runner.ingest.arrays import Data
from runner.ingest.batches import placement
from runner.ingest.tensors import as_tensors
from runner.learner import build_model
from runner.memory import Footprint
from runner.objective import Objective, objective
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
) -> Footprint:
    """Build on the driver what every worker will, and take a batch through it, to refuse now what it would refuse then.

    But for optimizer and scheduler: the first optimizer of a process makes torch import its compiler, most of a second.
    Returns what the model takes of memory. Raises ConfigError.
    """
    model = build_model(experiment, plan, data, torch.device("cpu"), initial)
    if lightning.is_module(model):
        learns: Objective = lightning.LightningObjective(model)
    else:
        learns = objective(experiment, data)
        parameters.groups(
            model, plan.learning_rate.configured(experiment.optimizer), plan.learning_rate.multiplier
        )
    saved = Saved(model)
    with saved.counting(), tried(experiment, plan.for_model(data), inputs, targets):
        learns.losses(model.eval(), inputs, targets)
    return footprint(model, len(inputs), saved.bytes, inputs)


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
        said = f": {error}"
        if not isinstance(error, RunnerError):
            said = f" with {type(error).__name__}: {' '.join(str(error).split())} ({own_line(error)})"
        raise ConfigError(
            f"model={experiment.model.target['_target_']}: a batch with inputs {tuple(inputs.shape)} and targets "
            f"{tuple(targets.shape)} failed{said}{instead}"
        ) from error


def first_batch(experiment: Experiment, plan: Plan, data: Data) -> tuple[Tensor, Tensor]:
    """As many of the first rows as a worker takes in a step, or fewer where they are large."""
    place = placement(experiment, torch.device("cpu"))
    numbers = math.prod(data.facts.input_shape)
    rows = min(plan.batch_size, plan.train_rows, max(2, NUMBERS // max(1, numbers)))
    inputs, targets = as_tensors(data.splits["train"].read(0, rows))
    return place(inputs), place(targets)


class Saved:
    """Bytes that the forwards within `counting` keep for their backwards; each storage once."""

    def __init__(self, but: nn.Module) -> None:
        self._known = {tensor.untyped_storage().data_ptr() for tensor in but.parameters()}
        self.bytes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept):
            yield

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._known:
            self._known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def weights_alone(make: Callable[[], nn.Module]) -> Footprint | None:
    """Of the model that `make` makes, without taking the memory for it; None where it cannot be made so."""
    try:
        with torch.device("meta"):
            model = make()
    except Exception:  # noqa: BLE001 (whatever is wrong with it shows when it is made for good)
        return None
    return footprint(model, 1, 0, torch.empty(0))


def footprint(model: nn.Module, rows: int, kept: int, inputs: Tensor) -> Footprint:
    """Of a model that `rows` rows went through, which kept `kept` bytes."""
    weights = sum(value.nbytes for value in model.state_dict().values() if isinstance(value, Tensor))
    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return Footprint(weights, gradients, (kept + inputs.nbytes) // rows)
