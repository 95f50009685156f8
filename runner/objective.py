"""What is minimised and what is measured, as sums over rows, so that any split of the rows gives the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner import build
from runner.communicator import Communicator
from runner.errors import ConfigError, TrainingError, refuse
from runner.metrics import UNCOUNTED, Metrics, build_metrics
from runner.plan import DataFacts
from runner.schema import Experiment, Loss, Task

RowFunction = Callable[[Tensor, Tensor], Tensor]  # (outputs [rows, …], targets [rows, …]) -> [rows]
RowWeights = Callable[[Tensor], Tensor]  # targets [rows, …] -> float64 [rows]


class Objective(Protocol):
    """How the loop trains and evaluates a model. Sums are over one rank's rows."""

    is_weighted: bool  # whether `weights` differ from row to row
    width: int  # of what `measure` gives

    def losses(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """Weight × loss of each row, [rows], to differentiate."""

    def weights(self, targets: Tensor) -> Tensor:
        """The weight of each row, float64 [rows]; the loss of any rows is Σ losses / Σ weights."""

    def logged(self, communicator: Communicator) -> dict[str, float]:
        """What the model itself logged in training since the last call, averaged over the ranks. Collective."""

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


def class_weights(setting: Any, data: DataFacts) -> Tensor | None:
    """Float64 [classes] from loss.class_weights: a list, or "balanced", rows / (classes × rows of the class).

    King and Zeng 2001, "Logistic Regression in Rare Events Data". Raises ConfigError.
    """
    if setting is None:
        return None
    if setting == "balanced":
        if data.class_counts is None:
            raise refuse(
                "loss.class_weights",
                setting,
                "this dataset does not count its classes",
                "loss.class_weights=[…], a weight a class",
            )
        counts = torch.tensor(data.class_counts, dtype=torch.float64)
        # A class without training rows has no weight to give.
        return torch.where(counts > 0, counts.sum() / (len(counts) * counts), 0.0)
    if len(setting) != data.out_features:
        raise refuse(
            "loss.class_weights",
            setting,
            f"{len(setting)} weights for {data.out_features} classes",
            "loss.class_weights=balanced",
        )
    return torch.tensor(setting, dtype=torch.float64)


def _of_task(task: Task, loss: Loss, data: DataFacts) -> Supervised:
    custom, smoothing = _custom(loss.target, data), loss.label_smoothing
    if task is Task.classification:
        weights = class_weights(loss.class_weights, data)
        return Supervised(
            custom or functools.partial(_cross_entropy, class_weights=weights, smoothing=smoothing),
            {"accuracy": _correct},
            row_weights=None if weights is None else lambda targets: weights.to(targets.device)[targets],
        )
    if task is Task.multilabel:
        row_losses = custom or functools.partial(_binary_cross_entropy, smoothing=smoothing)
        return Supervised(_same_shape(row_losses), {"accuracy": _same_shape(_correct_labels)})
    if task is Task.language_modeling:
        return Supervised(
            _of_tokens(custom) if custom else functools.partial(_next_tokens, smoothing=smoothing),
            {"accuracy": _correct_tokens, "bits_per_token": _bits},
            row_weights=_tokens,
            row_counts=_tokens,
            derived={"perplexity": ("bits_per_token", _two_to)},
        )
    return Supervised(_same_shape(custom or _squared_error), {"mae": _same_shape(_absolute_error)})


def _refuse_clashes(experiment: Experiment, plain: Supervised) -> None:
    for name in experiment.metrics:
        if name in plain.names:
            allowed = f"a {experiment.dataset.task.value} measures {name} by itself"
            raise refuse(f"metrics.{name}", "{…}", allowed, f"another name, metrics.{name}_2")


def _custom(target: dict[str, Any] | None, data: DataFacts) -> RowFunction | None:
    """A loss of the user's, as a loss a row."""
    if not target:
        return None
    name = target["_target_"]
    try:
        function = build.build(target, facts=data.for_model())
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"loss._target_={name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        what = f"gives a {type(function).__name__}, which cannot be called with (outputs, targets)"
        raise refuse("loss._target_", name, what, "+loss._partial_=true where it is a function")
    if isinstance(function, nn.Module) and any(weight.requires_grad for weight in function.parameters()):
        raise refuse("loss._target_", name, "has parameters of its own, which no optimizer would train")

    def row_losses(outputs: Tensor, targets: Tensor) -> Tensor:
        if isinstance(function, nn.Module):
            function.to(outputs.device)
        values, rows = function(outputs, targets), len(targets)
        shape = tuple(values.shape) if isinstance(values, Tensor) else None
        if shape == ():
            return values.expand(rows)
        if shape is None or shape[0] != rows:
            found = f"a {type(values).__name__}" if shape is None else f"shape {shape}"
            raise TrainingError(
                f"loss._target_={name}: gave {found} for {rows} rows; it must give a loss a row ({rows},), "
                f"an element ({rows}, …), or their mean ()"
            )
        return values.flatten(1).mean(dim=1) if len(shape) > 1 else values

    return row_losses


def _of_tokens(losses: RowFunction) -> RowFunction:
    """Sums a row of a loss whose rows are tokens; those that are not counted never reach it."""

    def row_losses(outputs: Tensor, targets: Tensor) -> Tensor:
        counted = targets != UNCOUNTED
        found = losses(outputs[counted], targets[counted])
        return found.new_zeros(targets.shape).masked_scatter(counted, found).sum(dim=1)

    return row_losses


def _same_shape(function: RowFunction) -> RowFunction:
    """Refuse what would be broadcast, [rows] with [rows, 1] to [rows, rows], and give a number without a meaning."""

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape:
            raise TrainingError(
                f"the model's outputs have shape {tuple(outputs.shape)}, the targets {tuple(targets.shape)}; "
                "they must be the same, a column a target"
            )
        return function(outputs, targets)

    return checked


def _cross_entropy(
    outputs: Tensor, targets: Tensor, class_weights: Tensor | None, smoothing: float
) -> Tensor:
    weight = None if class_weights is None else class_weights.to(outputs)
    return functional.cross_entropy(outputs, targets, weight, label_smoothing=smoothing, reduction="none")


def _binary_cross_entropy(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    smooth = targets * (1 - smoothing) + smoothing / 2
    return functional.binary_cross_entropy_with_logits(outputs, smooth, reduction="none").mean(dim=1)


def _next_tokens(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ over the tokens of a row, in nats; outputs [rows, time, vocab], targets [rows, time]."""
    losses = functional.cross_entropy(
        outputs.flatten(0, 1),
        targets.flatten(),
        ignore_index=UNCOUNTED,
        label_smoothing=smoothing,
        reduction="none",
    )
    return losses.view(targets.shape).sum(dim=1)


def _tokens(targets: Tensor) -> Tensor:
    return (targets != UNCOUNTED).sum(dim=1).double()


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(dim=1) == targets


def _correct_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).double().mean(dim=1)


def _correct_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=2) == targets).sum(dim=1)


def _bits(outputs: Tensor, targets: Tensor) -> Tensor:
    """The model's own surprise, whatever loss it is trained with."""
    return _next_tokens(outputs, targets).double() / math.log(2)


def _two_to(bits: float) -> float:
    return math.inf if bits >= 1024 else 2.0**bits  # a float64 ends there


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(dim=1)


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().flatten(1).mean(dim=1)


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan


def _full(outputs: Tensor) -> Tensor:
    """Half-precision outputs (autocast) as float32: losses are summed in no less."""
    return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs


def _ones(targets: Tensor) -> Tensor:
    return torch.ones(len(targets), dtype=torch.float64, device=targets.device)
