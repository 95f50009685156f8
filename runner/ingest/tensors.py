"""In-memory ingest: arrays that all ranks of a node share, cut by the sampler."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch

from runner.ingest.arrays import Array, Splits
from runner.ingest.batches import Columns, MicroBatch, evaluation_batches, micro_batches
from runner.ingest.sampler import epoch_order, part
from runner.plan import Plan


class TensorIngest:
    """Batches of one rank. `splits` may be read-only (shared memory): rows are copied out of it."""

    def __init__(self, splits: Splits, plan: Plan, seed: int, rank: int, device: torch.device) -> None:
        self._train, self._val = as_tensors(splits["train"]), as_tensors(splits["val"])
        self._plan, self._seed, self._rank, self._device = plan, seed, rank, device

    def steps(self, epoch: int) -> Iterator[list[MicroBatch]]:
        """One list of accumulation_steps micro-batches a step; the same number of steps on every rank."""
        inputs, targets = self._train
        order = epoch_order(self._plan.train_rows, self._seed, epoch)
        size = self._plan.global_batch_size
        for step in range(self._plan.steps_per_epoch):
            rows = order[step * size : (step + 1) * size]
            mine, first = rows[part(len(rows), self._plan.num_workers, self._rank)], rows[:1]
            filler = (inputs[first], targets[first])
            yield micro_batches((inputs[mine], targets[mine]), filler, len(rows), self._plan, self._device)

    def evaluation(self) -> Iterator[Columns]:
        return evaluation_batches(self._val, self._plan, self._rank, self._device)


def as_tensors(columns: tuple[Array, Array]) -> Columns:
    with warnings.catch_warnings():
        # Shared memory is read-only, which torch warns about; no row is written in place here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(columns[0]), torch.from_numpy(columns[1])
