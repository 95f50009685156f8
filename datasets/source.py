"""Sources: rows read from files range by range, for data larger than memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from datasets.split import Array, Rows, hold_out

MAX_BLOCK = 4096  # consecutive rows of one split
MIN_BLOCKS = 1000


class Reader(Protocol):
    """The rows of some files, numbered in file order; it pickles without open files, and opens them when it reads."""

    def __len__(self) -> int: ...

    def take(self, rows: Array) -> tuple[Array, Array]:
        """Inputs [rows, …] and targets [rows] or [rows, k] of ascending row numbers."""


@dataclass(frozen=True)
class Source:
    """One split of a reader's rows."""

    reader: Reader
    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, start: int, stop: int) -> tuple[Array, Array]:
        """Inputs and targets of the split's rows [start, stop)."""
        return self.reader.take(self.rows.numbers(start, stop))


def chosen(
    rows: int, val_rows: int | None, val_fraction: float, seed: int, stream: bool | None
) -> dict[str, Rows]:
    """The row numbers of train and val: by file where val has rows of its own, else held out by `seed`.

    Rows are held out one by one or, to be streamed, in blocks of consecutive ones: a thousandth of all rows, at most
    4096. Of fewer than 2000 rows both ways hold out the same.
    """
    if val_rows is not None:
        return {"train": Rows.all(rows), "val": Rows.all(val_rows)}
    return hold_out(rows, val_fraction, seed, max(1, min(MAX_BLOCK, rows // MIN_BLOCKS)) if stream else 1)


def splits(train: Reader, val: Reader, rows: dict[str, Rows], stream: bool | None) -> dict[str, Any]:
    """{"train": …, "val": …}: sources to be streamed, else their rows as arrays."""
    found = {"train": Source(train, rows["train"]), "val": Source(val, rows["val"])}
    if stream:
        return dict(found)
    return {name: source.read(0, len(source)) for name, source in found.items()}
