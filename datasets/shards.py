"""The raw rows of table files, numbered through all of them and read piece by piece."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from datasets.columns import WORDS, BadValueError, kind, shown
from datasets.files import Files, Path, ending, find, nearest, reason
from datasets.lines import Csv, JsonLines
from datasets.parquet import Parquet
from datasets.split import Array


class Format(Protocol):
    """How files of one format are read. Opens a file when asked, keeps no more than one open, and pickles."""

    def types(self, name: str) -> dict[str, Any]:
        """Column name → the arrow type to read it with."""

    def columns(self, name: str) -> dict[str, Any] | None:
        """The same as far as it is known without reading rows: a type, or the whole, may be None."""

    def pieces(self, name: str) -> list[tuple[int, int, int]]:
        """Where the pieces lie, in order; the third number is a piece's rows."""

    def read(self, name: str, piece: tuple[int, int, int], types: dict[str, Any], strict: bool) -> Any:
        """The arrow table of a piece, columns in the order of `types`; `strict` refuses others."""

    def place(self, name: str, row: int) -> str:
        """Where a row is, as a person would look for it; rows are counted from 0 here, from 1 there."""


FORMATS: dict[str, Callable[[Files], Format]] = {
    "parquet": Parquet,
    "pq": Parquet,
    "csv": Csv,
    "jsonl": JsonLines,
    "ndjson": JsonLines,
    "json": JsonLines,
}


class Shards:
    """Some columns of some files; `types` maps their names to arrow types, as the first file has them."""

    def __init__(self, path: Path, form: str | None, keep: bool) -> None:
        """`keep` holds every piece in memory once it is read, else the last one alone."""
        self.files = find(path, list(FORMATS))
        self._format = _format(self.files, form)
        self._keep = keep
        self._cache: dict[int, Any] = {}
        self._strict = False
        self._pieces = [
            (name, piece)
            for name in self.files.names
            for piece in self._told(name, self._format.pieces, name)
        ]
        if not self._pieces:
            raise ValueError(f"{self.files.names[0]}: has no rows")
        self._bounds = np.cumsum([0] + [piece[2] for _, piece in self._pieces])
        self.first = self._pieces[0][0]  # the file that says what columns there are
        try:
            self.types = self._told(self.first, self._format.types, self.first)
        except BadValueError as bad:
            place = self._told(self.first, self._format.place, self.first, bad.row)
            raise ValueError(f"{self.first}: {place}: {bad.problem}") from bad

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}, "_keep": False}

    @property
    def kinds(self) -> dict[str, str]:
        return {name: kind(found) for name, found in self.types.items()}

    def select(self, names: Sequence[str], strict: bool, like: Shards | None = None) -> None:
        """Keep the columns `names`; `strict` refuses files that have others too.

        Types are those of `like`'s first file, else of the own first file. Raises ValueError for a file whose
        columns do not fit, and for columns that are neither numbers, text, booleans nor times.
        """
        leader = like or self
        kinds = leader.kinds
        for name in names:
            if name not in leader.types:
                near = nearest(name, list(leader.types))
                raise ValueError(f"{leader.first}: no column {name!r}{near}; {shown(kinds)}")
            if kinds[name] not in WORDS:
                what = f"is {kinds[name]}: only numbers, text, booleans and times can be read"
                raise ValueError(f"{leader.first}: column {name!r} {what}; name others in `columns`")
        types = {name: leader.types[name] for name in names}
        for name in self.files.names:
            if name != leader.first:
                self._told(name, self._compare, name, types, strict, leader)
        self.types, self._strict = types, strict

    def visit(self, rows: Array, call: Callable[[Any], None]) -> None:
        """Call with the arrow table of each piece's part of the ascending `rows`, in order.

        A BadValueError of the call becomes the ValueError that names file and row.
        """
        cuts = rows.searchsorted(self._bounds)
        for index in np.flatnonzero(np.diff(cuts)):
            mine = rows[cuts[index] : cuts[index + 1]]
            inside = mine - self._bounds[index]
            table = self._piece(int(index))
            adjacent = len(mine) == 1 + mine[-1] - mine[0]
            table = table.slice(inside[0], len(mine)) if adjacent else table.take(inside)
            try:
                call(table)
            except BadValueError as bad:
                raise self._refusal(int(mine[bad.row]), bad) from bad

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The rows [start, stop) of each piece."""
        return [(int(start), int(stop)) for start, stop in pairwise(self._bounds)]

    def _piece(self, index: int) -> Any:
        if index not in self._cache:
            name, piece = self._pieces[index]
            if not self._keep:
                self._cache.clear()
            try:
                table = self._told(name, self._format.read, name, piece, self.types, self._strict)
            except BadValueError as bad:
                raise self._refusal(int(self._bounds[index]) + bad.row, bad) from bad
            if table.num_rows != piece[2]:
                raise ValueError(f"{name}: has changed since its rows were counted")
            self._cache[index] = table.combine_chunks()
        return self._cache[index]

    def _refusal(self, row: int, bad: BadValueError) -> ValueError:
        name = self._pieces[int(self._bounds.searchsorted(row, side="right")) - 1][0]
        first = next(
            start for start, (file, _) in zip(self._bounds, self._pieces, strict=False) if file == name
        )
        place = self._told(name, self._format.place, name, row - first)
        column = "" if bad.column is None else f", column {bad.column!r}"
        return ValueError(f"{name}: {place}{column}: {bad.problem}; {shown(self.kinds, bad.column)}")

    def _compare(self, name: str, types: dict[str, Any], strict: bool, leader: Shards) -> None:
        found = self._format.columns(name)
        if found is None:
            return
        for column, known in types.items():
            if column not in found:
                near = nearest(column, list(found))
                raise ValueError(f"column {column!r} is missing, which {leader.first} has{near}")
            if found[column] is not None and kind(found[column]) != kind(known):
                raise ValueError(
                    f"column {column!r} is {kind(found[column])}, in {leader.first} {kind(known)}"
                )
        extra = [column for column in found if column not in types]
        if strict and extra:
            raise ValueError(f"column {extra[0]!r} is not in {leader.first}")

    def _told(self, name: str, call: Any, *arguments: Any) -> Any:
        """The call's value; whatever goes wrong with the file becomes one line with its name."""
        from pyarrow import ArrowException

        try:
            return call(*arguments)
        except BadValueError:
            raise
        except StopIteration:
            raise ValueError(f"{name}: has changed since its rows were counted") from None
        except (OSError, EOFError, UnicodeDecodeError, csv.Error, ArrowException) as error:
            raise ValueError(f"{name}: cannot be read: {reason(error)}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


def _format(files: Files, form: str | None) -> Format:
    if form is not None and form not in FORMATS:
        raise ValueError(f"format={form}: must be one of {', '.join(FORMATS)}{nearest(form, list(FORMATS))}")
    found = {FORMATS.get(form or ending(name)): name for name in files.names}
    if None in found:
        raise ValueError(f"{found[None]}: no known ending; say format={' or format='.join(FORMATS)}")
    if len(found) > 1:
        raise ValueError(f"{' and '.join(found.values())}: files of one table must have one format")
    return next(known for known in found if known)(files)
