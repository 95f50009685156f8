"""What every ingest hands to the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


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

    def evaluation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's share of the validation rows: (inputs, targets); each row on exactly one rank."""
