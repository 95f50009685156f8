"""Rows split into training and validation, and inputs standardised by the training rows alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Splits = dict[str, tuple[Array, Array]]
MOST_CLASSES = 2**24  # a larger label is a number of something else
LABELS = f"whole numbers from 0 to {MOST_CLASSES - 1}"


def split(inputs: Array, targets: Array, val_fraction: float, seed: int) -> Splits:
    """{"train": (inputs, targets), "val": …}: a seeded shuffle, its first round(rows × val_fraction) rows are val."""
    held_out = _held_out(len(inputs), val_fraction)
    order = np.random.default_rng(seed).permutation(len(inputs))
    rows = {"val": order[:held_out], "train": order[held_out:]}
    return {name: (inputs[chosen], targets[chosen]) for name, chosen in rows.items()}


def no_label(values: Array) -> Array:
    """bool of the same shape: which of the numbers are no labels."""
    return (values < 0) | (values != np.floor(values)) | (values >= MOST_CLASSES)


@dataclass(frozen=True)
class Rows:
    """Row numbers in ascending order, kept as ranges [starts[i], stops[i]) that do not overlap."""

    starts: Array  # int64 [ranges]
    stops: Array

    @classmethod
    def all(cls, rows: int) -> Rows:
        return cls(np.array([0]), np.array([rows]))

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def numbers(self, start: int, stop: int) -> Array:
        """int64 [stop − start]: the row numbers at positions start … stop − 1; beyond the end there are none."""
        lengths = self.stops - self.starts
        ends = lengths.cumsum()
        position = np.arange(start, min(stop, int(ends[-1])))
        inside = ends.searchsorted(position, side="right")
        return position - (ends - lengths)[inside] + self.starts[inside]

    def between(self, low: int, high: int) -> Array:
        """int64: those of the row numbers that are in [low, high)."""
        return self.numbers(self._below(low), self._below(high))

    def _below(self, number: int) -> int:
        index = int(self.starts.searchsorted(number, side="right"))
        whole = int((self.stops[:index] - self.starts[:index]).sum())
        return whole - max(0, int(self.stops[index - 1]) - number) if index else 0


def hold_out(rows: int, val_fraction: float, seed: int, block: int = 1) -> dict[str, Rows]:
    """The rows of train and val: as many as in `split`, which they equal as sets where `block` is 1.

    Row numbers are cut into blocks of `block` consecutive rows; val takes blocks in a seeded order until it has
    its rows, and of the last block only the first ones. So both sides read long runs of rows, and share none.
    """
    held_out = _held_out(rows, val_fraction)
    if held_out >= rows:
        raise ValueError(f"val_fraction={val_fraction} of {rows} rows leaves none to train on")
    starts = np.arange(0, rows, block)
    lengths = np.minimum(block, rows - starts)
    order = np.random.default_rng(seed).permutation(len(starts))
    taken = lengths[order].cumsum()
    last = int(taken.searchsorted(held_out))
    lengths[order[last]] -= taken[last] - held_out
    chosen = np.sort(order[: last + 1])
    val = Rows(starts[chosen], starts[chosen] + lengths[chosen])
    between = Rows(np.append(0, val.stops), np.append(val.starts, rows))
    kept = between.starts < between.stops
    return {"train": Rows(between.starts[kept], between.stops[kept]), "val": val}


def standardise(splits: Splits) -> Splits:
    """Inputs with mean 0 and standard deviation 1 a column over the training rows; constant columns become 0."""
    train = splits["train"][0]
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    return {name: ((inputs - mean) / scale, targets) for name, (inputs, targets) in splits.items()}


def _held_out(rows: int, val_fraction: float) -> int:
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction={val_fraction}: must be between 0 and 1")
    return max(1, round(rows * val_fraction))
