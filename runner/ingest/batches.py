"""What every ingest hands to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from runner.ingest.sampler import part
from runner.plan import MAX_EVAL_BATCH, Plan

Columns = tuple[Tensor, Tensor]  # inputs [rows, …], targets [rows] or [rows, k]


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward and backward.

    The loss to differentiate is `scale` × Σ row losses, with scale = num_workers / rows of the global batch: summed
    over the micro-batches of a step and averaged over the ranks it is the mean over the global batch, however
    unevenly its rows are split. A rank without rows gets one row with scale 0, so that it still takes the step.
    """

    inputs: Tensor
    targets: Tensor
    scale: float


class Ingest(Protocol):
    """The batches of one rank."""

    def steps(self, epoch: int) -> Iterator[list[MicroBatch]]:
        """One list of accumulation_steps micro-batches a step; the same number of steps on every rank."""

    def evaluation(self) -> Iterator[Columns]:
        """This rank's share of the validation rows: (inputs, targets); each row on exactly one rank."""


def micro_batches(
    mine: Columns, filler: Columns, global_rows: int, plan: Plan, device: torch.device
) -> list[MicroBatch]:
    """This rank's rows of a global batch of `global_rows`, as accumulation_steps micro-batches.

    `filler` is one row, used with scale 0 where a micro-batch would be empty.
    """
    inputs, targets = (column.to(device) for column in mine)
    batches = []
    for index in range(plan.accumulation_steps):
        rows = part(len(inputs), plan.accumulation_steps, index)
        if rows.start < rows.stop:
            batches.append(MicroBatch(inputs[rows], targets[rows], plan.num_workers / global_rows))
        else:
            batches.append(MicroBatch(filler[0].to(device), filler[1].to(device), 0.0))
    return batches


def evaluation_batches(val: Columns, plan: Plan, rank: int, device: torch.device) -> Iterator[Columns]:
    """This rank's share of the validation rows, each row on exactly one rank."""
    mine = part(plan.val_rows, plan.num_workers, rank)
    for start in range(mine.start, mine.stop, MAX_EVAL_BATCH):
        rows = slice(start, min(start + MAX_EVAL_BATCH, mine.stop))
        yield val[0][rows].to(device), val[1][rows].to(device)
