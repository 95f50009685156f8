"""What is minimised and what is measured, as values per row, so that any split of the rows sums to the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from runner.schema import Task

RowFunction = Callable[[Tensor, Tensor], Tensor]  # (outputs [rows, k], targets) -> [rows]


@dataclass(frozen=True)
class Objective:
    row_losses: RowFunction
    row_metrics: dict[str, RowFunction]


def objective(task: Task) -> Objective:
    if task is Task.classification:
        return Objective(_cross_entropy, {"accuracy": _correct})
    return Objective(_squared_error, {"mae": _absolute_error})


def metric_names(task: Task) -> list[str]:
    """What an epoch of this task measures and a checkpoint may be selected by."""
    return ["train/loss", "val/loss", *(f"val/{name}" for name in objective(task).row_metrics)]


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).double()


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().flatten(1).mean(dim=1)


def _absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().flatten(1).mean(dim=1)
