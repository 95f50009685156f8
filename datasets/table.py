"""Tables in Parquet, CSV or JSON lines, as many files as there are, in memory or streamed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from datasets.columns import shown
from datasets.files import Path
from datasets.preprocessing import Encoding, Statistics
from datasets.shards import Shards
from datasets.source import chosen, splits
from datasets.split import Array
from datasets.targets import Targets

log = logging.getLogger(__name__)


def read(
    path: Path,
    target: str | Sequence[str],
    columns: Sequence[str] | None = None,
    val_path: Path | None = None,
    val_fraction: float = 0.2,
    max_categories: int = 32,
    target_kind: str | None = None,
    format: str | None = None,  # noqa: A002 (the key a user types)
    seed: int = 0,
    stream: bool | None = None,
) -> dict[str, Any]:
    """{"train": …, "val": …, "preprocessing": a fitted ColumnTransformer} and what is known of the targets.

    Inputs are float32 [rows, width]: numbers, booleans and times standardised, a text column one-hot, its
    `max_categories` most frequent texts. A missing number becomes the mean, which is 0; so does a column that is
    missing in every training row. Statistics are those of the training rows.

    Text and boolean targets become class ids int64 [rows], in the sorted order of "class_names"; numbers stay numbers,
    float32 [rows], [rows, k] for a list of k names. `target_kind` says what they are for: numbers of a "classification"
    are labels, int64 from 0; booleans of a "regression" or "multilabel" are 0 and 1. "out_features" is the number of
    classes or k; without `target_kind` it is left open for a single column of numbers.

    `path` and `val_path` are a file, a list, a glob or a folder, local or a URI. Without `val_path`, validation rows are
    held out by `val_fraction` and `seed` (see source.chosen). Every row is read once at the start, piece by piece, for
    the statistics; what does not fit raises ValueError with file, row and column.
    """
    train = Shards(path, format, keep=not stream)
    val = Shards(val_path, format, keep=not stream) if val_path is not None else None
    targets = [target] if isinstance(target, str) else list(target)
    names = [name for name in train.types if name not in targets] if columns is None else list(columns)
    wanted = [*names, *targets]
    if not names:
        raise ValueError(f"{train.first}: has no column besides the target {target!r}")
    if len(set(wanted)) < len(wanted):
        twice = next(name for name in wanted if wanted.count(name) > 1)
        raise ValueError(f"column {twice!r} is there twice: in `columns`, or there and in `target`")
    train.select(wanted, strict=columns is None)
    if val:
        val.select(wanted, strict=columns is None, like=train)
    kinds = train.kinds
    answers = Targets(targets, isinstance(target, str), kinds, target_kind)
    rows = chosen(len(train), len(val) if val else None, val_fraction, seed, stream)
    statistics = Statistics({name: kinds[name] for name in names})
    for start, stop in train.ranges:
        train.visit(np.arange(start, stop), answers.update)
        train.visit(rows["train"].between(start, stop), statistics.update)
    if val:
        for start, stop in val.ranges:
            val.visit(np.arange(start, stop), answers.update)
    for name in statistics.without_values():
        log.warning("column %r has no value in the training rows: its inputs are 0", name)
    encoding = statistics.encoding(max_categories)
    if not encoding.width:
        raise ValueError(f"{train.first}: no column has a value in the training rows; {shown(kinds)}")
    tables = [Table(shards, encoding, answers) for shards in (train, val) if shards]
    found = splits(tables[0], tables[-1], rows, stream)
    return {**found, "preprocessing": encoding.estimator(), **answers.facts()}


@dataclass(frozen=True)
class Table:
    """Raw rows, and how they become inputs and targets."""

    shards: Shards
    encoding: Encoding
    targets: Targets

    def __len__(self) -> int:
        return len(self.shards)

    def take(self, rows: Array) -> tuple[Array, Array]:
        """Inputs float32 [rows, width] and targets of ascending row numbers. Raises ValueError for a bad row."""
        inputs = np.empty((len(rows), self.encoding.width), np.float32)
        targets = self.targets.empty(len(rows))
        done = 0

        def take(table: Any) -> None:
            nonlocal done
            piece = slice(done, done + table.num_rows)
            self.encoding.encode(table, inputs[piece])
            targets[piece] = self.targets.encode(table)
            done = piece.stop

        self.shards.visit(rows, take)
        return inputs, targets
