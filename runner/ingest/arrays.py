"""A dataset, built and checked once on the driver: arrays in full, what is read later in its first rows."""

from __future__ import annotations

import glob
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner import build, schema
from runner.errors import ConfigError, TrainingError, refuse
from runner.ingest.checks import Check, Known, Pair, RejectedError, classes, known
from runner.ingest.row_order import Sampler, ask
from runner.ingest.rows import Arrays, Items, Rows, Source, Splits, row_bytes
from runner.plan import DataFacts
from runner.schema import Ingest, Task

FIRST_ROWS = 10_000
FIRST_BYTES = 64 * 2**20
EXTRA = {"preprocessing", "out_features", "class_names", "sampler"}


@dataclass(frozen=True)
class Data:
    """A dataset as the driver has checked it."""

    splits: Splits
    facts: DataFacts
    preprocessing: Any = None  # a fitted scikit-learn estimator or plain data, as the dataset gave it
    sampler: Sampler | None = None  # of the training rows, in place of a permutation

    def line(self) -> str:
        shape, rows = " × ".join(map(str, self.facts.input_shape)), self.facts
        return f"{rows.train_rows:,} training and {rows.val_rows:,} validation rows of {shape or 1} values"

    def nbytes(self) -> int:
        """Of the arrays in memory."""
        arrays = [rows for rows in self.splits.values() if isinstance(rows, Arrays)]
        return sum(rows.inputs.nbytes + rows.targets.nbytes for rows in arrays)


def load(dataset: schema.Dataset, seed: int = 0) -> Data:
    """Build the dataset's target and check its rows. Raises ConfigError that names the split and the first bad row.

    Arrays, and with `ingest=tensors` all rows, are read and checked in full. Of a Dataset or source that is read
    later only the first rows are: 10,000, or 64 MB. A sampler is asked for the rows of epoch 0, with the experiment's
    `seed`: their number is that of every epoch.
    """
    found = _build(dataset)
    try:
        train = _open(found["train"], "train", dataset)
        val = train if dataset.val_split is schema.Split.train else _open(found["val"], "val", dataset)
        _compare(train.first, val.first)
        out_features, class_names = _outputs(found, dataset, (train.first, val.first))
        like = known(train.first, out_features)
        rows = _settle(train, like, dataset.task)
        splits = {"train": rows, "val": rows if val is train else _settle(val, like, dataset.task)}
        sampler = _sampler(found, dataset)
        train_rows = len(rows) if sampler is None else len(ask(sampler, 0, seed, len(rows)))
    except (RejectedError, TrainingError) as error:
        said = str(error).removeprefix("dataset: ")
        raise ConfigError(f"{_at_fault(dataset.target, said)}: {said}") from error
    _check_travel(splits, dataset)
    inputs, targets = train.first
    has_counts = dataset.task is Task.classification and len(targets) == len(rows)
    counts = tuple(np.bincount(targets, minlength=out_features).tolist()) if has_counts else None
    facts = DataFacts(train_rows, len(splits["val"]), inputs.shape[1:], out_features, counts, class_names)
    return Data(splits, facts, found.get("preprocessing"), sampler)


@dataclass(frozen=True)
class Opened:
    """A split, and those of its rows that are checked already: of arrays all."""

    split: str
    rows: Rows
    first: Pair


def _build(dataset: schema.Dataset) -> Mapping[str, Any]:
    name = dataset.target["_target_"]
    try:
        found = build.build(dataset.target, facts={"stream": dataset.ingest is Ingest.ray_data})
    except ConfigError:
        raise
    except Exception as error:  # the user's reader may raise anything
        said, key = str(error), _at_fault(dataset.target, str(error))
        if isinstance(error, ValueError) and said.startswith(tuple(f"{name}=" for name in dataset.target)):
            raise ConfigError(f"dataset.{said}") from error
        if not isinstance(error, ValueError) or key == "dataset":
            said = f"{name}{_files(dataset.target)} failed with {type(error).__name__}: {said}"
        raise ConfigError(f"{key}: {said}") from error
    if not isinstance(found, Mapping) or set(found) - EXTRA != {"train", "val"}:
        raise ConfigError(
            f'dataset: {name} must return {{"train": (inputs, targets), "val": (inputs, targets)}}'
        )
    return found


def _at_fault(target: Mapping[str, Any], said: str) -> str:
    """The beginning of the line about a dataset that was refused: its argument that means the file which is named in
    `said`, with its value; else "dataset"."""
    found: dict[int, str] = {}
    for key, value in build.arguments(target).items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, str) and path and _beginning(path) in said:
                found.setdefault(len(_beginning(path)), f"dataset.{key}={value}")
    return found[max(found)] if found else "dataset"


def _files(target: Mapping[str, Any]) -> str:
    """The arguments that are files."""
    arguments = build.arguments(target).items()
    # Not Path.is_file, which raises where a text is too long for a name.
    found = [f"{key}={value}" for key, value in arguments if isinstance(value, str) and os.path.isfile(value)]  # noqa: PTH113
    return f"({', '.join(found)})" if found else ""


def _beginning(path: str) -> str:
    """How all files that a path means begin: of a glob, up to its first wildcard."""
    start = re.split(r"[*?[]", path)[0] if glob.has_magic(path) and not os.path.exists(path) else path  # noqa: PTH110
    return start if "://" in start else str(Path(start).absolute())


def _open(found: Any, split: str, dataset: schema.Dataset) -> Opened:
    check = Check(dataset.task, split)
    is_lazy = hasattr(found, "__len__") and not isinstance(found, tuple | list | str | Mapping | np.ndarray)
    if not (is_lazy and (hasattr(found, "read") or hasattr(found, "__getitem__"))):
        rows = check(*_columns(found, split, dataset.limit_rows))
        return Opened(split, Arrays(*rows), rows)
    length = min(len(found), dataset.limit_rows or len(found))
    if length == 0:
        raise RejectedError(f"split {split} has no rows")
    lazy = (Source if hasattr(found, "read") else Items)(found, length, check)
    first = lazy.read(0, min(length, FIRST_ROWS, max(1, FIRST_BYTES // row_bytes(lazy))))
    if dataset.ingest is Ingest.tensors:
        arrays = _gather(replace(lazy, check=replace(check, like=known(first))), first)
        return Opened(split, arrays, (arrays.inputs, arrays.targets))
    return Opened(split, lazy, first)


def _columns(found: Any, split: str, limit: int | None) -> tuple[Any, Any, range]:
    try:
        inputs, targets = (np.asarray(column) for column in found)
    except (TypeError, ValueError) as error:
        raise RejectedError(f"split {split} is not a pair (inputs, targets): {error}") from error
    if not inputs.ndim or not targets.ndim:
        raise RejectedError(f"split {split} has a single value where rows are needed")
    if len(inputs) != len(targets):
        raise RejectedError(f"split {split} has {len(inputs)} inputs but {len(targets)} targets")
    inputs, targets = inputs[:limit], targets[:limit]
    if len(inputs) == 0:
        raise RejectedError(f"split {split} has no rows")
    return inputs, targets, range(len(inputs))


def _gather(rows: Items | Source, first: Pair) -> Arrays:
    """All rows in memory."""
    arrays = Arrays(*(np.empty((len(rows), *column.shape[1:]), column.dtype) for column in first))
    size = len(first[0])
    for start in range(0, len(rows), size):
        piece = first if start == 0 else rows.read(start, start + size)
        arrays.inputs[start : start + size], arrays.targets[start : start + size] = piece
    return arrays


def _compare(train: Pair, val: Pair) -> None:
    for what, ours, theirs in zip(("shape", "targets of shape"), train, val, strict=True):
        if ours.shape[1:] != theirs.shape[1:]:
            raise RejectedError(
                f"a training row has {what} {ours.shape[1:]}, a validation row {theirs.shape[1:]}"
            )


def _outputs(
    found: Mapping[str, Any], dataset: schema.Dataset, splits: tuple[Pair, Pair]
) -> tuple[int, tuple[str, ...] | None]:
    """(out_features, class_names): what the dataset says, else what the checked rows have."""
    name, names = dataset.target["_target_"], found.get("class_names")
    names = None if names is None else tuple(str(one) for one in names)
    measured = classes(splits, dataset.task)
    given = found.get("out_features")
    if given is None:
        given = measured if names is None else len(names)
    is_count = isinstance(given, int | np.integer) and not isinstance(given, bool) and given >= 1
    has_columns = dataset.task in (Task.regression, Task.multilabel)
    if not is_count or (has_columns and given != measured):
        allowed = f"the targets have {measured} columns" if has_columns else "a number of classes is needed"
        raise ConfigError(f"dataset: {name} returned out_features={given}: {allowed}")
    if names is not None and len(names) != given:
        raise ConfigError(f"dataset: {name} returned {len(names)} class_names for out_features={given}")
    return int(given), names


def _sampler(found: Mapping[str, Any], dataset: schema.Dataset) -> Sampler | None:
    """The dataset's own sampler, if it has one: a function of the epoch that can be sent to the workers."""
    sampler, name = found.get("sampler"), dataset.target["_target_"]
    if sampler is None:
        return None
    if not callable(sampler):
        what = f"{name} returned a {type(sampler).__name__} as sampler"
        raise RejectedError(f"{what}: a function sampler(epoch) that gives row numbers is needed")
    if dataset.ingest is Ingest.ray_data:
        raise refuse(
            "dataset.ingest",
            dataset.ingest.value,
            f"the sampler of {name} needs rows by number",
            f"dataset.ingest={Ingest.dataloader.value}",
        )
    import cloudpickle

    try:
        cloudpickle.Pickler(_Nowhere()).dump(sampler)
    except Exception as error:  # pickling runs the user's code
        reason = f"the sampler of {name} cannot be sent to the workers"
        raise ConfigError(f"dataset: {reason}: {type(error).__name__}: {error}") from error
    checked: Sampler = sampler
    return checked


def _settle(opened: Opened, like: Known, task: Task) -> Rows:
    """Rows that are like the first ones of the training split: arrays now, others when they are read."""
    check = Check(task, opened.split, like)
    alike = check.alike(*opened.first, range(len(opened.first[0])))
    rows = opened.rows
    return replace(rows, check=check) if isinstance(rows, Items | Source) else Arrays(*alike)


def _check_travel(splits: Splits, dataset: schema.Dataset) -> None:
    """Refuse what cannot be sent to the loader's processes."""
    workers = dataset.loader_workers
    if dataset.ingest is not Ingest.dataloader or not workers:
        return
    try:
        for rows in splits.values():
            if not isinstance(rows, Arrays):  # those are read in the rank itself
                pickle.Pickler(_Nowhere()).dump(rows)
    except Exception as error:  # pickling runs the user's code
        reason = f"the dataset cannot be sent to a process: {type(error).__name__}: {error}"
        raise refuse("dataset.loader_workers", workers, reason, "dataset.loader_workers=0") from error


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)
