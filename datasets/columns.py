"""Columns of tables: what kinds there are, their values as numbers or text, and how a bad one is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from datasets.split import Array

WORDS = {"number": "a number", "bool": "true or false", "text": "text (UTF-8)", "time": "a date or time"}
SHOWN_COLUMNS = 10
EPOCH_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class BadValueError(ValueError):
    """A value of a piece of a table that does not fit; whoever knows the file turns it into the user's line."""

    def __init__(self, row: int, column: str | None, problem: str) -> None:
        super().__init__(problem)
        self.row = row  # counted from 0 within the piece
        self.column = column
        self.problem = problem


def kind(arrow_type: Any) -> str:
    """number, bool, text or time; of any other type, its name."""
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return kind(arrow_type.value_type)
    if types.is_boolean(arrow_type):
        return "bool"
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "number"
    if types.is_null(arrow_type):  # no value at all: as good as a number that is missing everywhere
        return "number"
    if types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type):
        return "text"
    return "time" if types.is_temporal(arrow_type) and not types.is_interval(arrow_type) else str(arrow_type)


def floats(column: Any) -> Array:
    """float64 [rows] of an arrow column of numbers, booleans (0 and 1) or times (seconds); missing ones are NaN.

    Dates and timestamps count from 1970 (UTC), times of day from midnight. float32 stays float32, which is exact.
    """
    import pyarrow as pa

    found = column.type
    if pa.types.is_dictionary(found):
        return floats(column.cast(found.value_type))
    if pa.types.is_date(found):
        return floats(column.cast(pa.timestamp("s" if pa.types.is_date32(found) else "ms")))
    if pa.types.is_temporal(found):
        ticks = column.cast(pa.int32() if found.bit_width == 32 else pa.int64())
        return floats(ticks) / EPOCH_SECONDS[found.unit]
    if not pa.types.is_floating(found) or pa.types.is_float16(found):
        column = column.cast(pa.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False)


def finite(column: Any, name: str) -> Array:
    """`floats`, where an infinite value raises BadValueError."""
    values = floats(column)
    infinite = np.isinf(values)
    if infinite.any():
        row = int(infinite.argmax())
        raise BadValueError(row, name, f"{values[row]} is not finite")
    return values


def texts(column: Any) -> Any:
    """An arrow column of text as plain strings: neither a dictionary nor large ones nor views."""
    import pyarrow as pa

    return column if column.type == pa.string() else column.cast(pa.string())


def shown(kinds: Mapping[str, str], first: str | None = None) -> str:
    """ "columns: a: number, b: text, … 990 more", the column in question before the others."""
    names = sorted(kinds, key=lambda name: name != first)  # stable: the rest keeps the file's order
    listed = [f"{name}: {kinds[name]}" for name in names[:SHOWN_COLUMNS]]
    if len(names) > SHOWN_COLUMNS:
        listed.append(f"… {len(names) - SHOWN_COLUMNS} more")
    return f"columns: {', '.join(listed)}"
