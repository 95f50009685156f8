"""CSV and JSON lines, read in byte ranges that end at line ends.

One binary pass finds the ranges and counts their lines, so that any row is reached without parsing those before it; a
line break inside a quoted value is therefore not read. Types are those of the first file's first rows, where numbers
are float64 whether written 1 or 1.0; whatever does not fit them later is an error with its row.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import Any

from datasets.columns import WORDS, BadValueError, kind
from datasets.files import Files, reason

PIECE_BYTES = 16 * 2**20
BLOCK_BYTES = 4 * 2**20  # what one of pyarrow's threads parses at a time; a line must fit
FIRST_BYTES = 64 * 2**20
FIRST_ROWS = 10_000
MAYBE_BLANK = (b"\n\n", b"\n\r", b"\n ", b"\n\t")

Types = dict[str, Any]  # name → arrow type
Piece = tuple[int, int, int]  # first byte, bytes, rows


@dataclass(frozen=True)
class Lines:
    """What CSV and JSON lines have in common; `shards.Format` says what the methods are for."""

    files: Files

    def columns(self, name: str) -> Types | None:
        return None

    def types(self, name: str) -> Types:
        with self.files.open(name) as file:
            names = self._start(file)
            lines: list[bytes] = []
            size = 0
            while len(lines) < FIRST_ROWS and size < FIRST_BYTES and (line := file.readline()):
                lines.append(line)
                size += len(line)
        blob = b"".join(lines)
        table = self._table(blob, self._count(blob), names, None, False)
        return {name: self._widened(table.column(name)) for name in table.column_names}

    def pieces(self, name: str) -> list[Piece]:
        found = []
        size = -1 if self.files.packed(name) else PIECE_BYTES  # there is no reading from the middle of a .gz
        with self.files.open(name) as file:
            self._start(file)
            start, rest, ended = file.tell(), b"", False
            while not ended:
                chunk = file.read(size)
                ended = not chunk
                blob = rest + chunk
                whole = len(blob) if ended else blob.rfind(b"\n") + 1
                if rows := self._count(blob[:whole]):
                    found.append((start, whole, rows))
                start, rest = start + whole, blob[whole:]
        return found

    def read(self, name: str, piece: Piece, types: Types, strict: bool) -> Any:
        with self.files.open(name) as file:
            names = self._start(file)
            file.seek(piece[0])
            blob = file.read(piece[1])
        return self._table(blob, piece[2], names, types, strict)

    def place(self, name: str, row: int) -> str:
        """With the line, as an editor counts them: the header and blank ones too."""
        with self.files.open(name) as file:
            self._start(file)
            header = file.tell()
            file.seek(0)
            line = file.read(header).count(b"\n")
            left = row + 1
            while left and (text := file.readline()):
                left -= self._count(text)
                line += 1
        return f"row {row + 1} (line {line})"

    def _start(self, file: Any) -> list[str] | None:
        """Move a file to its first row; the names of its header if it has one."""
        return None

    def _parse(self, blob: bytes, names: list[str] | None, types: Types | None, strict: bool) -> Any:
        """The arrow table of whole lines; types are guessed where there are none. Raises ArrowException."""
        raise NotImplementedError

    def _fault(
        self, line: bytes, names: list[str] | None, types: Types | None, strict: bool
    ) -> tuple[str | None, str]:
        """What is wrong with a line that does not parse: a column, if it is one, and words."""
        raise NotImplementedError

    def _widened(self, column: Any) -> Any:
        """The type to read all rows with, of a column of the first ones."""
        import pyarrow as pa

        found = column.type
        if kind(found) == "number":
            return pa.float64()
        if pa.types.is_date(found) or (pa.types.is_timestamp(found) and found.unit != "ns"):
            return pa.timestamp("us", tz=getattr(found, "tz", None))
        return found

    def _rows(self, blob: bytes) -> list[bytes]:
        """The lines that are not blank."""
        return [line for line in blob.split(b"\n") if line.strip()]

    def _count(self, blob: bytes) -> int:
        if blob[:1].isspace() or any(mark in blob for mark in MAYBE_BLANK):
            return len(self._rows(blob))
        return blob.count(b"\n") + (not blob.endswith(b"\n")) if blob else 0

    def _table(self, blob: bytes, count: int, *how: Any) -> Any:
        """`_parse`; raises BadValueError for the first line that does not parse, or not into one row."""
        table = self._tried(blob, count, *how)
        if table is not None:
            return table
        rows = self._rows(blob)
        if len(rows) != count:
            raise ValueError("has changed since its rows were counted")
        good, bad = 0, len(rows)  # the first `good` rows parse, the first `bad` do not
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._tried(b"\n".join(rows[:middle]), middle, *how) is None:
                bad = middle
            else:
                good = middle
        raise BadValueError(good, *self._fault(rows[good], *how))

    def _tried(self, blob: bytes, rows: int, *how: Any) -> Any:
        """The table of as many rows, or None."""
        from pyarrow import ArrowException

        try:
            table = self._parse(blob, *how)
        except ArrowException:
            return None
        return table if table.num_rows == rows else None


class Csv(Lines):
    """Comma-separated values under a header; empty, NA, NaN, null and the like are missing."""

    def columns(self, name: str) -> Types:
        with self.files.open(name) as file:
            return dict.fromkeys(self._start(file))

    def _start(self, file: Any) -> list[str]:
        while line := file.readline():
            if line.strip():
                break
        else:
            raise ValueError("is empty")
        names = next(csv.reader([line.decode("utf-8-sig")]))
        if any("\0" in name for name in names):
            raise ValueError("a name in the header holds a NUL: is this text?")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"column {twice!r} is there twice in the header")
        return names

    def _rows(self, blob: bytes) -> list[bytes]:
        return [line for line in blob.split(b"\n") if line.strip(b"\r")]

    def _parse(self, blob: bytes, names: list[str] | None, types: Types | None, strict: bool) -> Any:
        from pyarrow import BufferReader
        from pyarrow.csv import ConvertOptions, ReadOptions, read_csv

        size = BLOCK_BYTES if types else len(blob) + 1  # types are guessed from one block
        return read_csv(
            BufferReader(blob),
            read_options=ReadOptions(column_names=names, block_size=size),
            convert_options=ConvertOptions(
                column_types=types, include_columns=list(types or ()), strings_can_be_null=True
            ),
        )

    def _fault(
        self, line: bytes, names: list[str] | None, types: Types | None, strict: bool
    ) -> tuple[str | None, str]:
        names = names or []
        values = next(csv.reader([line.decode("utf-8", "surrogateescape")]))
        if len(values) != len(names):
            return None, f"number of values is {len(values)}, of names in the header {len(names)}"
        for name, value in zip(names, values, strict=True):
            if types and name in types:
                quoted = '"' + value.replace('"', '""') + '"'
                one = quoted.encode(errors="surrogateescape")
                if self._tried(one, 1, [name], {name: types[name]}, False) is None:
                    return name, _misfit(value, types[name])
        return None, "cannot be parsed: is a line break inside a quoted value, or text that is not UTF-8?"


class JsonLines(Lines):
    """One JSON object a line; keys that a line leaves out are missing values."""

    def _widened(self, column: Any) -> Any:
        """Text is a time where all of it is: pyarrow does not look for fractions of a second here."""
        import pyarrow as pa

        for zone in (None, "UTC") if column.type == pa.string() else ():
            try:
                column.cast(pa.timestamp("us", zone))
            except pa.ArrowInvalid:
                continue
            return pa.timestamp("us")  # the reader minds zones by itself
        return super()._widened(column)

    def _parse(self, blob: bytes, names: list[str] | None, types: Types | None, strict: bool) -> Any:
        from pyarrow import BufferReader, schema
        from pyarrow.json import ParseOptions, ReadOptions, read_json

        known = {"explicit_schema": schema(types.items())} if types else {}
        unexpected = "infer" if types is None else "error" if strict else "ignore"
        return read_json(
            BufferReader(blob),
            read_options=ReadOptions(block_size=BLOCK_BYTES if types else len(blob) + 1),
            parse_options=ParseOptions(**known, unexpected_field_behavior=unexpected),
        )

    def _fault(
        self, line: bytes, names: list[str] | None, types: Types | None, strict: bool
    ) -> tuple[str | None, str]:
        try:
            found = json.loads(line)
        except ValueError as error:
            return None, f"is no JSON: {reason(error)}"
        types = types or {}
        if not isinstance(found, dict):
            return None, f"{_short(found)} is no JSON object"
        for name, value in found.items():
            if strict and name not in types:
                return name, "is not in the first rows"
            one = json.dumps({name: value}).encode()
            if name in types and self._tried(one, 1, None, {name: types[name]}, True) is None:
                return name, _misfit(value, types[name])
        return None, "cannot be parsed: is a name there twice, or do the first rows mix types?"


def _misfit(value: Any, found: Any) -> str:
    return f"{_short(value)} is not {WORDS[kind(found)]}"


def _short(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"
