"""A dataset's arrays, loaded and checked once on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from runner import build
from runner.errors import ConfigError
from runner.plan import DataFacts
from runner.schema import Dataset, Task

Array = npt.NDArray[Any]
Splits = dict[
    str, tuple[Array, Array]
]  # {"train": (inputs [rows, …], targets [rows] or [rows, k]), "val": …}


def load(dataset: Dataset) -> Splits:
    """Call the dataset's target and return {"train": …, "val": …} as arrays that a loss can take.

    Inputs become float32 (integers stay int64), labels int64 [rows], regression targets float32 [rows, k].
    Raises ConfigError that names the split and the first bad row.
    """
    name = dataset.target["_target_"]
    try:
        found = build.build(dataset.target)
    except ConfigError:
        raise
    except Exception as error:  # the user's reader may raise anything
        raise ConfigError(f"dataset: {name} failed with {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping) or set(found) != {"train", "val"}:
        raise ConfigError(
            f'dataset: {name} must return {{"train": (inputs, targets), "val": (inputs, targets)}}'
        )
    splits = {split: _columns(found[split], split, dataset) for split in ("train", "val")}
    if dataset.val_split.value == "train":
        splits["val"] = splits["train"]
    return splits


def describe(splits: Splits, task: Task) -> DataFacts:
    (inputs, targets), (val_inputs, val_targets) = splits["train"], splits["val"]
    if inputs.shape[1:] != val_inputs.shape[1:]:
        raise ConfigError(
            f"dataset: a training row has shape {inputs.shape[1:]}, a validation row {val_inputs.shape[1:]}"
        )
    if task is Task.classification:
        out_features = int(max(targets.max(), val_targets.max())) + 1
    else:
        out_features = targets.shape[1]
    return DataFacts(len(inputs), len(val_inputs), tuple(inputs.shape[1:]), out_features)


def _columns(columns: Any, split: str, dataset: Dataset) -> tuple[Array, Array]:
    try:
        inputs, targets = (np.asarray(column) for column in columns)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"dataset: split {split} is not a pair (inputs, targets): {error}") from error
    if not inputs.ndim or not targets.ndim:
        raise ConfigError(f"dataset: split {split} has a single value where rows are needed")
    if len(inputs) != len(targets):
        raise ConfigError(f"dataset: split {split} has {len(inputs)} inputs but {len(targets)} targets")
    inputs, targets = inputs[: dataset.limit_rows], targets[: dataset.limit_rows]
    if len(inputs) == 0:
        raise ConfigError(f"dataset: split {split} has no rows")
    inputs = _numeric(inputs, f"inputs of split {split}")
    targets = _numeric(targets, f"targets of split {split}")
    if dataset.task is Task.classification:
        return inputs, _labels(targets, split)
    return inputs, targets.astype(np.float32).reshape(len(targets), -1)


def _numeric(column: Array, what: str) -> Array:
    if not (np.issubdtype(column.dtype, np.number) or column.dtype == bool):
        raise ConfigError(f"dataset: {what} are {column.dtype}, row 0 is {column[0]!r}: numbers are needed")
    if np.issubdtype(column.dtype, np.integer):
        return column.astype(np.int64)
    column = column.astype(np.float32)
    bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
    if bad.any():
        row = int(bad.argmax())
        raise ConfigError(f"dataset: {what} have a NaN or inf in row {row}: {column[row]}")
    return column


def _labels(targets: Array, split: str) -> Array:
    labels = targets.reshape(len(targets), -1)
    if labels.shape[1] != 1 or (labels != labels.astype(np.int64)).any() or (labels < 0).any():
        bad = (labels != labels.astype(np.int64)).any(axis=1) | (labels < 0).any(axis=1)
        row = int(bad.argmax())
        raise ConfigError(
            f"dataset: labels of split {split} must be whole numbers from 0, one a row; row {row} is {targets[row]}"
        )
    return labels[:, 0].astype(np.int64)
