"""The order of an epoch's rows: a permutation by seed + epoch, or what the dataset's own sampler gives.

A sampler is a function of the epoch that gives row numbers of the training split, as many in each epoch: any number
of them, in any order, rows repeated or left out (weighted or balanced sampling). It runs on every rank and must give
the same on all; so what it draws from `random`, `numpy.random` and torch's default generator depends on seed and epoch
alone, and a torch.utils.data sampler that is made in it may be returned as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from runner.errors import TrainingError
from runner.ingest.rows import call, random_numbers_kept, reseed
from runner.ingest.sampler import epoch_order
from runner.plan import Plan

Sampler = Callable[[int], Iterable[int]]  # epoch -> row numbers
NEEDED = "a sequence of row numbers is needed"
NO_ROW = -1  # what a sampler draws is seeded in a row's place, but as none is


class Order:
    """Row numbers of each epoch, int64 [plan.train_rows]; every rank cuts its shares from them."""

    def __init__(self, plan: Plan, seed: int, split_rows: int, sampler: Sampler | None = None) -> None:
        self._rows, self._seed, self._split_rows, self._sampler = plan.train_rows, seed, split_rows, sampler
        self._asked: tuple[int, Tensor] | None = None  # (epoch, its rows): a sampler is asked once an epoch

    def __call__(self, epoch: int) -> Tensor:
        """Raises TrainingError for what a sampler must not give."""
        if self._sampler is None:
            return epoch_order(self._rows, self._seed, epoch)
        rows = self._ask(self._sampler, epoch)
        if len(rows) != self._rows:
            raise TrainingError(
                f"dataset: sampler({epoch}) gave {len(rows)} rows, sampler(0) {self._rows}: every epoch needs as many"
            )
        return rows

    def signature(self, epoch: int) -> tuple[int, int]:
        """(rows, crc32 of their numbers); 0 for a permutation, which cannot differ between ranks."""
        if self._sampler is None:
            return self._rows, 0
        rows = self._ask(self._sampler, epoch)
        return len(rows), zlib.crc32(rows.numpy().tobytes())

    def _ask(self, sampler: Sampler, epoch: int) -> Tensor:
        if self._asked is None or self._asked[0] != epoch:
            self._asked = epoch, ask(sampler, epoch, self._seed, self._split_rows)
        return self._asked[1]


def ask(sampler: Sampler, epoch: int, seed: int, split_rows: int) -> Tensor:
    """The sampler's rows for an epoch, checked, int64 [rows]. Raises TrainingError in one line."""
    where = f"sampler({epoch})"
    with random_numbers_kept():
        reseed(seed + epoch, NO_ROW)
        found = call(where, sampler, epoch)
        if not isinstance(found, Iterable):
            raise TrainingError(f"dataset: {where} gave a {type(found).__name__}: {NEEDED}")
        is_array = isinstance(found, Sequence | np.ndarray | Tensor)
        numbers = call(where, lambda: np.asarray(found if is_array else list(found)))
    if numbers.ndim == 1 and not len(numbers):
        raise TrainingError(f"dataset: {where} gave no rows")
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise TrainingError(f"dataset: {where} gave {numbers.dtype} of shape {numbers.shape}: {NEEDED}")
    wrong = np.flatnonzero((numbers < 0) | (numbers >= split_rows))
    if len(wrong):
        raise TrainingError(
            f"dataset: {where} gave row {numbers[wrong[0]]} (number {wrong[0]} of {len(numbers)}), but split train has "
            f"{split_rows} rows (0 to {split_rows - 1})"
        )
    return torch.from_numpy(np.array(numbers, dtype=np.int64))  # a copy: a sampler may reuse its array
