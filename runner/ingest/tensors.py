"""In-memory ingest: arrays that all ranks of a node share, cut by the sampler."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from runner.ingest.arrays import Array, Splits
from runner.ingest.batches import MicroBatch
from runner.ingest.sampler import epoch_order, part
from runner.plan import MAX_EVAL_BATCH, Plan


class TensorIngest:
    """Batches of one rank. `splits` may be read-only (shared memory): rows are copied out of it."""

    def __init__(self, splits: Splits, plan: Plan, seed: int, rank: int, device: torch.device) -> None:
        self._train = _tensors(splits["train"])
        self._val = _tensors(splits["val"])
        self._plan, self._seed, self._rank, self._device = plan, seed, rank, device

    def steps(self, epoch: int) -> Iterator[list[MicroBatch]]:
        """One list of accumulation_steps micro-batches a step; the same number of steps on every rank."""
        order = epoch_order(self._plan.train_rows, self._seed, epoch)
        size = self._plan.global_batch_size
        for step in range(self._plan.steps_per_epoch):
            yield self._micro_batches(order[step * size : (step + 1) * size])

    def evaluation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's share of the validation rows, each row on exactly one rank."""
        inputs, targets = self._val
        mine = part(self._plan.val_rows, self._plan.num_workers, self._rank)
        for start in range(mine.start, mine.stop, MAX_EVAL_BATCH):
            rows = slice(start, min(start + MAX_EVAL_BATCH, mine.stop))
            yield inputs[rows].to(self._device), targets[rows].to(self._device)

    def _micro_batches(self, rows: Tensor) -> list[MicroBatch]:
        inputs, targets = self._train
        mine = rows[part(len(rows), self._plan.num_workers, self._rank)]
        batches = []
        for index in range(self._plan.accumulation_steps):
            chosen = mine[part(len(mine), self._plan.accumulation_steps, index)]
            scale = self._plan.num_workers / len(rows) if len(chosen) else 0.0
            if not len(chosen):
                chosen = rows[:1]
            batches.append(
                MicroBatch(inputs[chosen].to(self._device), targets[chosen].to(self._device), scale)
            )
        return batches


def _tensors(columns: tuple[Array, Array]) -> tuple[Tensor, Tensor]:
    with warnings.catch_warnings():
        # Shared memory is read-only, which torch warns about; no row is written in place here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(columns[0]), torch.from_numpy(columns[1])
