"""What is minimised and what is measured, as sums over rows, so that any split of the rows gives the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from runner import losses
from runner.communicator import Communicator
from runner.errors import refuse
from runner.losses import RowFunction
from runner.metrics import Metrics, build_metrics
from runner.plan import DataFacts
from runner.schema import Experiment, Loss, Task

RowWeights = Callable[[Tensor], Tensor]  # targets [rows, …] -> float64 [rows]


class Objective(Protocol):
    """How the loop trains and evaluates a model. Sums are over one rank's rows."""

    @property
    def is_weighted(self) -> bool:
        """Whether `weights` differ from row to row."""

    @property
    def width(self) -> int:
        """Of what `measure` gives."""

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Weight × loss of each row, [rows], to differentiate."""

    def weights(self, targets: Tensor) -> Tensor:
        """The weight of each row, float64 [rows]; the loss of any rows is Σ losses / Σ weights."""

    def logged(self, communicator: Communicator) -> dict[str, float]:
        """What the model itself logged in training since the last call, averaged over the ranks. Collective."""

    def state_dict(self) -> dict[str, Any]:
        """What this rank holds since the last `logged`, for a checkpoint between two: tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, once the model's own state is loaded."""

    def measure(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Float64 sums over evaluation rows, [width]."""

    def metrics(self, sums: Tensor, communicator: Communicator) -> dict[str, float]:
        """{"loss": …, …} of all rows measured on all ranks since the last call, and start anew. `sums` is what
        `measure` gave, summed over batches and ranks. Collective."""


@dataclass(frozen=True)
class Supervised:
    """A model called with the inputs, its outputs compared with the targets."""

    row_losses: RowFunction  # already weighted
    row_metrics: Mapping[str, RowFunction]  # Σ over the rows is divided by Σ row_counts
    row_weights: RowWeights | None = None  # of the losses; null: 1
    row_counts: RowWeights | None = None  # of the metrics; null: 1
    derived: Mapping[str, tuple[str, Callable[[float], float]]] = field(default_factory=dict)  # from a metric
    library: Metrics = field(default_factory=lambda: Metrics({}, Task.regression))  # torchmetrics

    @property
    def names(self) -> list[str]:
        """What `metrics` always gives."""
        return ["loss", *self.row_metrics, *self.derived]

    @property
    def is_weighted(self) -> bool:
        return self.row_weights is not None

    @property
    def width(self) -> int:
        return 3 + len(self.row_metrics)

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.row_losses(_full(model(inputs)), targets)

    def weights(self, targets: Tensor) -> Tensor:
        return (self.row_weights or _ones)(targets)

    def logged(self, communicator: Communicator) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def measure(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = _full(model(inputs))
        rows = [self.row_losses(outputs, targets), self.weights(targets), (self.row_counts or _ones)(targets)]
        rows += [function(outputs, targets) for function in self.row_metrics.values()]
        self.library.update(outputs, targets)
        return torch.stack([values.double().sum() for values in rows])

    def metrics(self, sums: Tensor, communicator: Communicator) -> dict[str, float]:
        loss, weight, count, *rest = sums.tolist()
        found = {"loss": _ratio(loss, weight)}
        found |= {name: _ratio(total, count) for name, total in zip(self.row_metrics, rest, strict=True)}
        found |= {name: unit(found[source]) for name, (source, unit) in self.derived.items()}
        return found | self.library.compute(communicator)


def objective(experiment: Experiment, data: DataFacts) -> Supervised:
    """The objective of `dataset.task`, with the loss and the metrics of the config. Raises ConfigError."""
    task = experiment.dataset.task
    plain = _of_task(task, experiment.loss, data)
    _refuse_clashes(experiment, plain)
    return replace(plain, library=build_metrics(experiment.metrics, data, task))


def metric_names(experiment: Experiment) -> list[str]:
    """What a validation of this experiment measures and a checkpoint may be selected by. Raises ConfigError."""
    # The names are the task's: nothing of the user's is built for them.
    plain = _of_task(experiment.dataset.task, Loss(), DataFacts(1, 1, (1,), 1))
    _refuse_clashes(experiment, plain)
    return ["train/loss", *(f"val/{name}" for name in [*plain.names, *experiment.metrics])]


def _of_task(task: Task, loss: Loss, data: DataFacts) -> Supervised:
    custom, smoothing = losses.custom(loss.target, data), loss.label_smoothing
    if task is Task.classification:
        weights = losses.class_weights(loss.class_weights, data)
        return Supervised(
            custom or functools.partial(losses.cross_entropy, class_weights=weights, smoothing=smoothing),
            {"accuracy": losses.correct},
            row_weights=None if weights is None else lambda targets: weights.to(targets.device)[targets],
        )
    if task is Task.multilabel:
        row_losses = custom or functools.partial(losses.binary_cross_entropy, smoothing=smoothing)
        return Supervised(
            losses.same_shape(row_losses), {"accuracy": losses.same_shape(losses.correct_labels)}
        )
    if task is Task.language_modeling:
        return Supervised(
            losses.of_tokens(custom)
            if custom
            else functools.partial(losses.next_tokens, smoothing=smoothing),
            {"accuracy": losses.correct_tokens, "bits_per_token": losses.bits},
            row_weights=losses.tokens,
            row_counts=losses.tokens,
            derived={"perplexity": ("bits_per_token", _two_to)},
        )
    return Supervised(
        losses.same_shape(custom or losses.squared_error), {"mae": losses.same_shape(losses.absolute_error)}
    )


def _refuse_clashes(experiment: Experiment, plain: Supervised) -> None:
    for name in experiment.metrics:
        if name in plain.names:
            allowed = f"a {experiment.dataset.task.value} measures {name} by itself"
            raise refuse(f"metrics.{name}", "{…}", allowed, f"another name, metrics.{name}_2")


def _two_to(bits: float) -> float:
    return math.inf if bits >= 1024 else 2.0**bits  # a float64 ends there


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan


def _full(outputs: Tensor) -> Tensor:
    """Half-precision outputs (autocast) as float32: losses are summed in no less."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def _ones(targets: Tensor) -> Tensor:
    return torch.ones(len(targets), dtype=torch.float64, device=targets.device)
