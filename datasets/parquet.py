"""Parquet, read by row groups and slices of them, never a whole file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datasets.files import Files

PIECE_ROWS = 65_536
PIECE_VALUES = 2**20  # fewer rows of a wide table
BUFFER_BYTES = 32 * 2**10  # a column; without it pyarrow reads whole column chunks

Piece = tuple[int, int, int]  # row group, its rows before the piece, rows


class Parquet:
    """Slices of a row group are read one after the other; one that is not the next starts its row group again."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._next: tuple[Any, ...] = ()  # the slice that comes next out of `_slices`
        self._slices: Iterator[Any] = iter(())

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "_next": (), "_slices": iter(())}

    def columns(self, name: str) -> dict[str, Any]:
        return self.types(name)

    def types(self, name: str) -> dict[str, Any]:
        with self._open(name) as file:
            schema = file.schema_arrow
        return {field.name: field.type for field in schema}

    def pieces(self, name: str) -> list[Piece]:
        with self._open(name) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            most = _piece_rows(len(file.schema_arrow))
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

    def _read(self, name: str, group: int, columns: list[str]) -> Iterator[Any]:
        with self._open(name) as file:
            most = _piece_rows(len(file.schema_arrow))
            batches = file.iter_batches(most, row_groups=[group], columns=columns)
            for _ in range(file.metadata.row_group(group).num_rows, most, -most):
                yield next(batches)
            last = next(batches)
        yield last  # with the file and its buffers already closed

    def _open(self, name: str) -> Any:
        from fsspec.implementations.local import LocalFileSystem
        from pyarrow.parquet import ParquetFile

        # Small reads cost nothing on a disk; elsewhere a row group is fetched in few requests, and held until it is read.
        local = isinstance(self.files.system, LocalFileSystem)
        how = {"pre_buffer": False, "buffer_size": BUFFER_BYTES} if local else {"pre_buffer": True}
        return ParquetFile(name, filesystem=self.files.system, **how)


def _piece_rows(columns: int) -> int:
    return max(256, min(PIECE_ROWS, PIECE_VALUES // max(columns, 1)))
