"""Losses and measures a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner import build
from runner.errors import ConfigError, TrainingError, refuse
from runner.plan import DataFacts
from runner.schema import UNCOUNTED

RowFunction = Callable[[Tensor, Tensor], Tensor]  # (outputs [rows, …], targets [rows, …]) -> [rows]


def custom(target: dict[str, Any] | None, data: DataFacts) -> RowFunction | None:
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


def of_tokens(losses: RowFunction) -> RowFunction:
    """Sums a row of a loss whose rows are tokens; those that are not counted never reach it."""

    def row_losses(outputs: Tensor, targets: Tensor) -> Tensor:
        counted = targets != UNCOUNTED
        found = losses(outputs[counted], targets[counted])
        return found.new_zeros(targets.shape).masked_scatter(counted, found).sum(dim=1)

    return row_losses


def same_shape(function: RowFunction) -> RowFunction:
    """Refuse what would be broadcast, [rows] with [rows, 1] to [rows, rows], and give a number without a meaning."""

    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape:
            raise TrainingError(
                f"the model's outputs have shape {tuple(outputs.shape)}, the targets {tuple(targets.shape)}; "
                "they must be the same, a column a target"
            )
        return function(outputs, targets)

    return checked


def cross_entropy(outputs: Tensor, targets: Tensor, class_weights: Tensor | None, smoothing: float) -> Tensor:
    weight = None if class_weights is None else class_weights.to(outputs)
    return functional.cross_entropy(outputs, targets, weight, label_smoothing=smoothing, reduction="none")


def binary_cross_entropy(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    smooth = targets * (1 - smoothing) + smoothing / 2
    return functional.binary_cross_entropy_with_logits(outputs, smooth, reduction="none").mean(dim=1)


def next_tokens(outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ over the tokens of a row, in nats; outputs [rows, time, vocab], targets [rows, time]."""
    losses = functional.cross_entropy(
        outputs.flatten(0, 1),
        targets.flatten(),
        ignore_index=UNCOUNTED,
        label_smoothing=smoothing,
        reduction="none",
    )
    return losses.view(targets.shape).sum(dim=1)


def tokens(targets: Tensor) -> Tensor:
    return (targets != UNCOUNTED).sum(dim=1).double()


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(dim=1) == targets


def correct_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs > 0) == (targets > 0.5)).double().mean(dim=1)


def correct_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=2) == targets).sum(dim=1)


def bits(outputs: Tensor, targets: Tensor) -> Tensor:
    """The model's own surprise, whatever loss it is trained with."""
    return next_tokens(outputs, targets).double() / math.log(2)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(dim=1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().flatten(1).mean(dim=1)


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
