"""In-memory ingest: arrays that all ranks of a node share, cut by the sampler."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from runner.ingest.batches import Columns, MicroBatch, Place, evaluation_rows, micro_batches
from runner.ingest.checks import Pair
from runner.ingest.row_order import Order, Sampler
from runner.ingest.rows import Splits
from runner.ingest.sampler import shares
from runner.plan import Plan

EXAMPLE_ROWS = 2  # with a single row torch.export would fix the batch size at 1


class TensorIngest:
    """Batches of one rank. `splits` may be read-only (shared memory): rows are copied out of it."""

    def __init__(
        self,
        splits: Splits,
        plan: Plan,
        seed: int,
        rank: int,
        place: Place,
        sampler: Sampler | None = None,
    ) -> None:
        self._train, self._val = (
            as_tensors(splits[name].read(0, len(splits[name]))) for name in ("train", "val")
        )
        self._plan, self._rank, self._place = plan, rank, place
        self._order = Order(plan, seed, len(splits["train"]), sampler)

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        inputs, targets = self._train
        for share in shares(self._plan, self._order(epoch), self._rank, done):
            found = inputs[share.rows], targets[share.rows]
            yield micro_batches(found, share.counted, share.global_rows, self._plan, self._place)

    def order(self, epoch: int) -> tuple[int, int]:
        return self._order.signature(epoch)

    def evaluation(self) -> Iterator[Columns]:
        inputs, targets = self._val
        for rows in evaluation_rows(self._plan, self._rank):
            chosen = slice(rows.start, rows.stop)
            yield self._place(inputs[chosen]), self._place(targets[chosen])

    def close(self) -> None:
        pass


def as_tensors(columns: Pair) -> Columns:
    """The same memory as tensors."""
    with warnings.catch_warnings():
        # Shared memory is read-only, which torch warns about; no row is written in place here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(columns[0]), torch.from_numpy(columns[1])


def example(splits: Splits) -> Tensor:
    """Inputs of a few rows, as the model takes them, on the CPU."""
    inputs, _ = as_tensors(splits["val"].read(0, 1))
    return inputs.repeat_interleave(EXAMPLE_ROWS, dim=0)
