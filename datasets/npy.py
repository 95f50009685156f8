"""Arrays saved by NumPy: two .npy files, memory-mapped, or one .npz."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datasets.files import find, reason
from datasets.source import chosen, splits
from datasets.split import LABELS, Array, no_label

ARCHIVE = b"PK"  # how an .npz begins


def read(
    inputs: str,
    targets: str | None = None,
    val_inputs: str | None = None,
    val_targets: str | None = None,
    val_fraction: float = 0.2,
    target_kind: str | None = None,
    seed: int = 0,
    stream: bool | None = None,
) -> dict[str, Any]:
    """{"train": …, "val": …}: the rows of two local .npy files, or of an .npz with arrays `inputs` and `targets`.

    Without `val_inputs`, validation rows are held out by `val_fraction` and `seed` (see source.chosen). Floating
    values become float32. With `target_kind="classification"`, "out_features" is the largest target + 1.

    An .npy is mapped: only what is read is in memory. An .npz cannot be mapped: each process reads it whole.
    """
    train = Saved(_one(inputs), targets and _one(targets), target_kind == "classification")
    val = None
    if val_inputs:
        val = Saved(_one(val_inputs), val_targets and _one(val_targets), train.are_labels)
    if val and val.row_shape != train.row_shape:
        raise ValueError(
            f"{val.inputs}: a row has shape {val.row_shape}, in {train.inputs} {train.row_shape}"
        )
    rows = chosen(len(train), len(val) if val else None, val_fraction, seed, stream)
    found = splits(train, val or train, rows, stream)
    if target_kind == "classification":
        largest = max(int(side.arrays[1].max()) for side in (train, val) if side)
        found["out_features"] = largest + 1
    return found


@dataclass
class Saved:
    """Rows of saved arrays; the files are opened at the first look."""

    inputs: str
    targets: str | None
    are_labels: bool  # the targets
    _arrays: tuple[Array, Array] | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    def __len__(self) -> int:
        return len(self.arrays[0])

    def take(self, rows: Array) -> tuple[Array, Array]:
        """Copies of the rows of ascending numbers. Raises ValueError with file and row for one that is not finite or no label."""
        part = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0)
        inside = rows - part.start if len(rows) else rows
        inputs, targets = (_single(array[part][inside]) for array in self.arrays)
        for column, name in ((inputs, self.inputs), (targets, self.targets or self.inputs)):
            if np.issubdtype(column.dtype, np.inexact):
                _refuse(~np.isfinite(column), column, rows, name, "is not finite")
        if self.are_labels and np.issubdtype(targets.dtype, np.number):
            name = self.targets or self.inputs
            _refuse(no_label(targets), targets, rows, name, f"is no label: {LABELS} are")
        return inputs, targets

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape[1:]

    @property
    def arrays(self) -> tuple[Array, Array]:
        if self._arrays is None:
            self._arrays = self._opened()
        return self._arrays

    def _opened(self) -> tuple[Array, Array]:
        found = _load(self.inputs)
        if isinstance(found, np.ndarray):
            if self.targets is None:
                raise ValueError(
                    f"{self.inputs}: targets=null: a second .npy is needed, or one .npz with both"
                )
            pair = found, _load(self.targets)
        else:
            if not {"inputs", "targets"} <= set(found):
                raise ValueError(
                    f"{self.inputs}: needed are arrays inputs and targets; it has {', '.join(found)}"
                )
            pair = found["inputs"], found["targets"]
        if not all(isinstance(array, np.ndarray) and array.ndim for array in pair) or len(pair[0]) != len(
            pair[1]
        ):
            shapes = " and ".join(str(getattr(array, "shape", "an archive")) for array in pair)
            raise ValueError(f"{self.inputs}: inputs and targets need as many rows; they are {shapes}")
        return pair


def _refuse(bad: Array, column: Array, rows: Array, name: str, problem: str) -> None:
    """Rows are counted from 0, as in NumPy."""
    if bad.any():
        row, *place = np.argwhere(bad)[0]
        raise ValueError(f"{name}: row {rows[row]}: {column[(row, *place)]} {problem}")


def _load(name: str) -> Any:
    """A mapped array, or the arrays of an archive by name."""
    try:
        with open(name, "rb") as file:  # noqa: PTH123 (NumPy would leave the file of a broken archive open)
            if file.read(len(ARCHIVE)) == ARCHIVE:
                file.seek(0)
                with np.load(file, allow_pickle=False) as found:
                    return dict(found)
        return np.load(name, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a file with something else in it makes NumPy raise anything
        said = reason(error)
        if "pickle" in said or "Python objects" in said:  # NumPy would say how to load it all the same
            said = "is no array of numbers that NumPy has saved"
        raise ValueError(f"{name}: cannot be read: {said}") from error


def _one(path: str) -> str:
    return find(path, ["npy", "npz"]).names[0]


def _single(array: Array) -> Array:
    return array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array
