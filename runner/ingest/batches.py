"""What every ingest hands to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runner.ingest.sampler import part
from runner.plan import MAX_EVAL_BATCH, Plan
from runner.schema import Experiment, Precision

MAX_EVAL_BYTES = 64 * 2**20  # of rows that are not in memory anyway

Columns = tuple[Tensor, Tensor]  # inputs [rows, …], targets [rows] or [rows, …]


@dataclass(frozen=True)
class Place:
    """Where batches go: a device, and the type of floating-point numbers (null: as they are)."""

    device: torch.device
    dtype: torch.dtype | None = None

    def __call__(self, column: Tensor) -> Tensor:
        if self.device.type == "cuda":
            column = column.pin_memory()  # so that the copy runs beside the computation
        dtype = self.dtype if column.is_floating_point() else None
        return column.to(self.device, dtype, non_blocking=True)


def placement(experiment: Experiment, on: torch.device) -> Place:
    return Place(on, torch.float64 if experiment.trainer.precision is Precision.float64 else None)


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward and backward.

    A rank without rows of the global batch gets one row that is not `counted`, so that it still takes the step.
    """

    inputs: Tensor
    targets: Tensor
    counted: bool
    global_rows: int  # rows of the global batch, over all ranks and micro-batches


class Ingest(Protocol):
    """The batches of one rank."""

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        """One list of accumulation_steps micro-batches a step; the same number of steps on every rank.

        `done` rows of the epoch's order are used already, over all ranks: the steps of the rest. Nothing is drawn from
        the random numbers of the training itself (torch's, numpy's and Python's global ones).
        """

    def order(self, epoch: int) -> tuple[int, int]:
        """(rows, crc32) of the epoch's order, which must be equal on all ranks; 0 where no user's sampler decides."""

    def evaluation(self) -> Iterator[Columns]:
        """This rank's share of the validation rows: (inputs, targets); each row on exactly one rank."""

    def close(self) -> None:
        """End what runs beside the loop; may be called at any time, and twice."""


def micro_batches(
    rows: Columns, counted: int, global_rows: int, plan: Plan, place: Place
) -> list[MicroBatch]:
    """This rank's rows of a global batch of `global_rows`, as accumulation_steps micro-batches.

    Only the first `counted` of the rows are its own; the first one also fills micro-batches that would be empty.
    """
    inputs, targets = (place(column) for column in rows)
    batches = []
    for index in range(plan.accumulation_steps):
        mine = part(counted, plan.accumulation_steps, index)
        is_counted = mine.start < mine.stop
        taken = mine if is_counted else slice(0, 1)
        batches.append(MicroBatch(inputs[taken], targets[taken], is_counted, global_rows))
    return batches


def evaluation_rows(plan: Plan, rank: int, bytes_a_row: int = 1) -> Iterator[range]:
    """This rank's validation rows in batches, each row on exactly one rank; batches of large rows are smaller."""
    size = max(1, min(MAX_EVAL_BATCH, MAX_EVAL_BYTES // bytes_a_row))
    mine = part(plan.val_rows, plan.num_workers, rank)
    for start in range(mine.start, mine.stop, size):
        yield range(start, min(start + size, mine.stop))
