"""Parquet, read by row groups and slices of them, never a whole file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datasets.files import Files

PIECE_ROWS = 65_536
LEAST_ROWS = 256
PIECE_VALUES = 2**20  # fewer rows of a wide table
BUFFER_BYTES = 32 * 2**10  # a column; without it pyarrow reads whole column chunks

Piece = tuple[int, int, int]  # row group, its rows before the piece, rows


class Parquet:
    """Slices of a row group are read one after the other; one that is not the next starts its row group again."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._open: tuple[str, Any] = ("", None)  # the last file, by name
        self._next: tuple[Any, ...] = ()  # the slice that comes next out of `_slices`
        self._slices: Iterator[Any] = iter(())

    def __reduce__(self) -> tuple[Any, ...]:
        return Parquet, (self.files,)

    def columns(self, name: str) -> dict[str, Any]:
        return self.types(name)

    def types(self, name: str) -> dict[str, Any]:
        # pandas writes an index that is no plain range as a column; it is no input.
        schema = self._file(name).schema_arrow
        return {field.name: field.type for field in schema if not field.name.startswith("__index_level_")}

    def pieces(self, name: str) -> list[Piece]:
        file = self._file(name)
        most = _piece_rows(file)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        if sum(sizes) != file.metadata.num_rows or min(sizes, default=0) < 0:
            raise ValueError("is damaged: its row groups do not have as many rows as it says")
        return [
            (group, skipped, min(most, rows - skipped))
            for group, rows in enumerate(sizes)
            for skipped in range(0, rows, most)
        ]

    def read(self, name: str, piece: Piece, types: dict[str, Any], strict: bool) -> Any:
        """The piece's columns, in the order of `types`; they have the file's own types."""
        import pyarrow as pa

        group, skipped, rows = piece
        wanted = (name, group, tuple(types))
        if self._next != (*wanted, skipped):
            self._slices = self._read(name, group, list(types))
            while skipped > 0:
                skipped -= next(self._slices).num_rows
        self._next = (*wanted, piece[1] + rows)
        return pa.Table.from_batches([next(self._slices)]).select(list(types))

    def place(self, name: str, row: int) -> str:
        return f"row {row + 1}"

    def _read(self, name: str, group: int, columns: list[str]) -> Iterator[Any]:
        file = self._file(name)
        yield from file.iter_batches(_piece_rows(file), row_groups=[group], columns=columns)

    def _file(self, name: str) -> Any:
        from fsspec.implementations.local import LocalFileSystem
        from pyarrow.parquet import ParquetFile

        if self._open[0] != name:
            # Small reads cost nothing on a disk; elsewhere a row group is fetched in few requests, and held.
            local = isinstance(self.files.system, LocalFileSystem)
            how = {"pre_buffer": False, "buffer_size": BUFFER_BYTES} if local else {"pre_buffer": True}
            self._open = (name, ParquetFile(name, filesystem=self.files.system, **how))
        return self._open[1]


def _piece_rows(file: Any) -> int:
    return max(LEAST_ROWS, min(PIECE_ROWS, PIECE_VALUES // max(len(file.schema_arrow), 1)))
