"""One view of a split, whatever the dataset gave: arrays, a map-style Dataset, or a source.

    arrays             (inputs, targets), one row an example
    map-style Dataset  len() and dataset[i] → (input, target), or __getitems__(list of i)
    source             len() and read(start, stop) → (inputs, targets) of the rows [start, stop)

The last two are read when rows are needed, and each row is checked then. What a dataset draws from `random`,
`numpy.random` and torch's default generator depends on seed, epoch and row alone: it is the same for any number of
ranks and of loader processes. (With `__getitems__` and `read` it depends on the first row of the call.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from runner.errors import TrainingError, own_line
from runner.ingest.checks import Array, Check, Pair, RejectedError


class Rows(Protocol):
    """Rows of one split by number: (inputs, targets), checked. Raises TrainingError that names the row."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int, seed: int = 0) -> Pair:
        """The rows [start, stop); `seed` is for random numbers that a dataset draws."""

    def take(self, numbers: Sequence[int], seed: int = 0) -> Pair:
        """The rows of these numbers, in their order."""


Splits = dict[str, Rows]  # {"train": …, "val": …}


@dataclass(frozen=True)
class Arrays:
    """Rows in memory, checked already; in a worker they lie in shared memory and are read-only."""

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, start: int, stop: int, seed: int = 0) -> Pair:
        return self.inputs[start:stop], self.targets[start:stop]

    def take(self, numbers: Sequence[int], seed: int = 0) -> Pair:
        return self.inputs[numbers], self.targets[numbers]


@dataclass(frozen=True)
class Items:
    """The first `length` rows of a map-style Dataset."""

    found: Any
    length: int
    check: Check

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int, seed: int = 0) -> Pair:
        return self.take(range(start, min(stop, self.length)), seed)

    def take(self, numbers: Sequence[int], seed: int = 0) -> Pair:
        numbers = [int(number) for number in numbers]
        with random_numbers_kept():
            pairs = self._items(numbers, seed)
            inputs = self._stack([pair[0] for pair in pairs], numbers, "input")
            targets = self._stack([pair[1] for pair in pairs], numbers, "target")
        return _checked(self.check, inputs, targets, numbers)

    def _items(self, numbers: list[int], seed: int) -> list[tuple[Any, Any]]:
        if hasattr(self.found, "__getitems__"):
            reseed(seed, numbers[0])
            where = f"rows {numbers[0]} … of split {self.check.split}"
            items = call(where, self.found.__getitems__, numbers)
            if len(items) != len(numbers):
                raise TrainingError(f"dataset: {where}: __getitems__ gave {len(items)} of {len(numbers)}")
        else:
            items = []
            for number in numbers:
                reseed(seed, number)
                items.append(call(self._name(number), self.found.__getitem__, number))
        for number, item in zip(numbers, items, strict=True):
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise TrainingError(f"dataset: {self._name(number)} is not a pair (input, target)")
        return items

    def _stack(self, values: list[Any], numbers: list[int], what: str) -> Array:
        arrays = [
            call(self._name(number), np.asarray, value) for number, value in zip(numbers, values, strict=True)
        ]
        for number, array in zip(numbers, arrays, strict=True):
            if array.shape != arrays[0].shape:
                raise TrainingError(
                    f"dataset: {self._name(number)} has {what} of shape {array.shape}, "
                    f"row {numbers[0]} {arrays[0].shape}"
                )
        return np.stack(arrays)

    def _name(self, number: int) -> str:
        return f"row {number} of split {self.check.split}"


@dataclass(frozen=True)
class Source:
    """The first `length` rows of a source."""

    found: Any
    length: int
    check: Check

    def __len__(self) -> int:
        return self.length

    def read(self, start: int, stop: int, seed: int = 0) -> Pair:
        stop = min(stop, self.length)
        where = f"rows {start} to {stop - 1} of split {self.check.split}"
        with random_numbers_kept():
            reseed(seed, start)
            columns = call(where, self.found.read, start, stop, told=ValueError)
        if not isinstance(columns, tuple | list) or len(columns) != 2:
            raise TrainingError(f"dataset: {where}: read gave no pair (inputs, targets)")
        inputs, targets = (np.asarray(column) for column in columns)
        if len(inputs) != stop - start or len(targets) != stop - start:
            raise TrainingError(
                f"dataset: {where}: read gave {len(inputs)} inputs and {len(targets)} targets"
            )
        return _checked(self.check, inputs, targets, range(start, stop))

    def take(self, numbers: Sequence[int], seed: int = 0) -> Pair:
        """Runs of neighbouring rows are read at once, in ascending order; single rows of a file are slow."""
        order = np.argsort(numbers)
        ascending = np.asarray(numbers)[order]
        runs = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
        found = [self.read(int(run[0]), int(run[-1]) + 1, seed) for run in runs]
        back = np.argsort(order)
        inputs, targets = (np.concatenate(columns)[back] for columns in zip(*found, strict=True))
        return inputs, targets


def row_bytes(rows: Rows) -> int:
    """Bytes of a row's input and target, by the first one."""
    return max(1, sum(column.nbytes for column in rows.read(0, 1)))


def call(
    where: str, function: Callable[..., Any], *arguments: Any, told: type[Exception] | tuple[()] = ()
) -> Any:
    """What the user's code gives; what it raises becomes one line with the row and the user's line. Errors of the
    type `told` say themselves what is wrong where."""
    try:
        return function(*arguments)
    except told as error:
        raise TrainingError(f"dataset: {where}: {' '.join(str(error).split())}") from error
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())} ({own_line(error)})"
        raise TrainingError(f"dataset: {where}: {message}") from error


def _checked(check: Check, inputs: Array, targets: Array, numbers: Sequence[int]) -> Pair:
    try:
        return check(inputs, targets, numbers)
    except RejectedError as error:
        raise TrainingError(f"dataset: {error}") from error


def reseed(seed: int, row: int) -> None:
    """Python's, numpy's and torch's (CPU) random numbers from seed and row alone."""
    import torch

    mixed = (seed * 0x9E3779B97F4A7C15 + row * 0xD1342543DE82EF95) % 2**63
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.default_generator.manual_seed(mixed)


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Random numbers of the training itself (dropout) go on afterwards as if nothing had been drawn."""
    import torch

    before = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.default_generator.set_state(before[2])
