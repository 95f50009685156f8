"""What a data set holds, in a word: equal for equal data."""

from __future__ import annotations

import glob
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from runner import build
from runner.ingest.arrays import Data
from runner.ingest.rows import Arrays

FIRST_ROWS = 1000  # of what is read as it is needed


def content(data: Data, target: dict[str, Any]) -> str:
    """sha256, in hexadecimal: of arrays all bytes; of what is read later its first rows, and the names, sizes and times of the
    files that `target`'s arguments mean: paths, patterns, folders with all that is in them."""
    hashed = hashlib.sha256()
    for name, rows in sorted(data.splits.items()):
        hashed.update(f"{name} {len(rows)}\n".encode())
        columns = rows.read(0, len(rows) if isinstance(rows, Arrays) else min(len(rows), FIRST_ROWS))
        for column in columns:
            array = np.ascontiguousarray(column)
            hashed.update(f"{array.dtype} {array.shape}\n".encode())
            hashed.update(array.tobytes())
    if not all(isinstance(rows, Arrays) for rows in data.splits.values()):
        for path in _files(target):
            stat = path.stat()
            hashed.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return hashed.hexdigest()


def _files(target: dict[str, Any]) -> list[Path]:
    found: set[Path] = set()
    for value in build.arguments(target).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and "\0" not in text and len(text) < 4096:
                for path in map(Path, glob.glob(text, recursive=True)):  # noqa: PTH207 (absolute patterns too)
                    found |= {path, *(path.rglob("*") if path.is_dir() else ())}
    return sorted(path for path in found if path.is_file())
