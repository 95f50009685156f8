"""What rows must be for a task, and the words for those that are not. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.schema import UNCOUNTED, Task

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]  # inputs [rows, …], targets [rows] or [rows, …]


MOST_CLASSES = 2**24  # a larger label or token is a number of something else


class RejectedError(ValueError):
    """Rows that do not fit; the message continues "dataset: "."""


@dataclass(frozen=True)
class Known:
    """What the first rows are, and so all others."""

    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    is_float: bool  # inputs
    out_features: int | None = None  # null: not known before all rows are read


def known(rows: Pair, out_features: int | None = None) -> Known:
    inputs, targets = rows
    return Known(inputs.shape[1:], targets.shape[1:], inputs.dtype == np.float32, out_features)


@dataclass(frozen=True)
class Check:
    """Rows of one split → arrays that a loss can take. Raises RejectedError that names the first bad row.

    Inputs become float32 (integers int64). Targets: labels int64 [rows], regression and multilabel float32 [rows, k],
    language modelling int64 [rows, time] like its inputs.
    """

    task: Task
    split: str
    like: Known | None = None

    def __call__(self, inputs: Array, targets: Array, numbers: Sequence[int]) -> Pair:
        """`numbers` are the rows' numbers in their split."""
        inputs = _numeric(inputs, f"inputs of split {self.split}", numbers)
        targets = _numeric(targets, f"targets of split {self.split}", numbers)
        if self.task is Task.classification:
            targets = _labels(targets, self.split, numbers)
        elif self.task is Task.language_modeling:
            inputs, targets = _tokens(inputs, targets, self.split, numbers)
        else:
            targets = targets.astype(np.float32, copy=False).reshape(len(targets), -1)
            if self.task is Task.multilabel:
                _refuse_rows((targets != 0) & (targets != 1), targets, numbers, self.split, "must be 0 or 1")
        return self.alike(inputs, targets, numbers) if self.like else (inputs, targets)

    def alike(self, inputs: Array, targets: Array, numbers: Sequence[int]) -> Pair:
        """Checked rows, which must be like the first ones."""
        assert self.like
        like, where = self.like, f"of split {self.split} from row {numbers[0]} on"
        for name, column, shape in (
            ("inputs", inputs, like.input_shape),
            ("targets", targets, like.target_shape),
        ):
            if column.shape[1:] != shape:
                raise RejectedError(
                    f"{name} {where} have shape {column.shape[1:]}, the first rows {shape} a row"
                )
        if like.is_float:
            inputs = inputs.astype(np.float32, copy=False)
        elif inputs.dtype != np.int64:
            raise RejectedError(f"inputs {where} are {inputs.dtype}, the first rows int64")
        if like.out_features is not None:
            self._check_range(inputs, targets, numbers, like.out_features)
        return inputs, targets

    def _check_range(self, inputs: Array, targets: Array, numbers: Sequence[int], out_features: int) -> None:
        counted = {Task.classification: (targets,), Task.language_modeling: (inputs, targets)}
        for column in counted.get(self.task, ()):
            rows = column.reshape(len(column), -1)
            if rows.size and rows.max() >= out_features:
                row = int((rows >= out_features).any(axis=1).argmax())
                what = "token" if self.task is Task.language_modeling else "label"
                raise RejectedError(
                    f"row {numbers[row]} of split {self.split} has {what} {rows[row].max()}, but out_features is "
                    f"{out_features} (0 to {out_features - 1}); return the right out_features with the splits"
                )


def classes(splits: Sequence[Pair], task: Task) -> int:
    """Largest label or token of checked rows + 1; number of targets for the other tasks. Raises RejectedError."""
    if task not in (Task.classification, Task.language_modeling):
        return splits[0][1].shape[1]
    columns = [targets for _, targets in splits]
    if task is Task.language_modeling:
        columns += [inputs for inputs, _ in splits]
    largest = max(int(column.max()) for column in columns)
    if largest >= MOST_CLASSES:
        raise RejectedError(f"the largest label is {largest}: {MOST_CLASSES - 1} is the most")
    return largest + 1


def _numeric(column: Array, what: str, numbers: Sequence[int]) -> Array:
    if not (np.issubdtype(column.dtype, np.number) or column.dtype == bool):
        raise RejectedError(
            f"{what} are {column.dtype}, row {numbers[0]} is {column[0]!r}: numbers are needed"
        )
    if np.issubdtype(column.dtype, np.integer):
        return column.astype(np.int64, order="C", copy=False)
    with np.errstate(over="ignore"):  # beyond float32 is inf, which is refused
        column = column.astype(np.float32, order="C", copy=False)
    bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise RejectedError(f"{what} have a NaN or inf in row {numbers[row]}: {column[row]}")
    return column


def _labels(targets: Array, split: str, numbers: Sequence[int]) -> Array:
    rows = targets.reshape(len(targets), -1)
    bad = (rows != rows.astype(np.int64)) | (rows < 0) | (rows.shape[1] != 1)
    if bad.any() or rows.shape[1] != 1:
        row = int(bad.any(axis=1).argmax())
        raise RejectedError(
            f"labels of split {split} must be whole numbers from 0, one a row; row {numbers[row]} is {targets[row]}"
        )
    return rows[:, 0].astype(np.int64)


def _tokens(inputs: Array, targets: Array, split: str, numbers: Sequence[int]) -> Pair:
    if inputs.ndim != 2 or inputs.shape != targets.shape:
        raise RejectedError(
            f"a row of split {split} has inputs of shape {inputs.shape[1:]} and targets of shape {targets.shape[1:]}: "
            "language_modeling needs as many targets as inputs, [rows, time]"
        )
    wrong = (inputs != inputs.astype(np.int64)) | (inputs < 0)
    _refuse_rows(wrong, inputs, numbers, split, "must be whole numbers from 0", "inputs")
    wrong = (targets != targets.astype(np.int64)) | ((targets < 0) & (targets != UNCOUNTED))
    _refuse_rows(wrong, targets, numbers, split, f"must be whole numbers from 0, or {UNCOUNTED}")
    return inputs.astype(np.int64, copy=False), targets.astype(np.int64, copy=False)


def _refuse_rows(
    wrong: Array, column: Array, numbers: Sequence[int], split: str, rule: str, name: str = "targets"
) -> None:
    if wrong.any():
        row = int(wrong.any(axis=1).argmax())
        first = column[row][wrong[row]][0]
        raise RejectedError(f"{name} of split {split} {rule}; row {numbers[row]} has {first:g}")
