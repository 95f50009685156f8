"""Target columns of tables: class ids, or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from datasets.columns import BadValueError, finite, texts
from datasets.split import LABELS, Array, no_label

KINDS = ("classification", "regression", "multilabel")


class Targets:
    """What all rows say about the targets, training and validation rows alike, and the arrays they become."""

    def __init__(
        self, names: Sequence[str], single: bool, kinds: Mapping[str, str], kind: str | None
    ) -> None:
        """`single`: targets are [rows], else [rows, names]. Raises ValueError where names, kinds and `kind` disagree."""
        if kind not in (None, *KINDS):
            raise ValueError(f"target_kind={kind}: must be one of {', '.join(KINDS)}")
        if kind == "classification" and not single:
            raise ValueError(f"target={list(names)}: a classification has one target column")
        are_numbers = not single or kind in ("regression", "multilabel")
        word = next((name for name in names if kinds[name] == "text" and are_numbers), None)
        if word is not None:
            wanted = f"a {kind}" if kind else "a list of targets"
            raise ValueError(f"target column {word!r} is text: {wanted} needs numbers")
        self.names = list(names)
        self._single, self._kind = single, kind
        is_named = not are_numbers and kinds[names[0]] in ("text", "bool")
        self._words: set[str] | None = set() if is_named else None
        self._largest = -1.0

    def update(self, table: Any) -> None:
        """Take note of an arrow table's rows. Raises BadValueError for a target that is missing or no label."""
        if self._words is not None:
            self._words.update(self._text(table).unique().to_pylist())
        elif self._kind == "classification":
            self._largest = max(self._largest, float(self._labels(table).max(initial=-1)))
        else:
            self._numbers(table)

    def facts(self) -> dict[str, Any]:
        """ "out_features" where `target_kind` or the column's type tells it, and "class_names" of text."""
        if self._words is not None:
            return {"out_features": len(self._words), "class_names": sorted(self._words)}
        if self._kind == "classification":
            return {"out_features": int(self._largest) + 1}
        return {"out_features": len(self.names)} if self._kind or not self._single else {}

    def empty(self, rows: int) -> Array:
        """Room for the targets of as many rows."""
        if self._words is not None or self._kind == "classification":
            return np.empty(rows, np.int64)
        return np.empty(rows if self._single else (rows, len(self.names)), np.float32)

    def encode(self, table: Any) -> Array:
        """The targets of an arrow table's rows."""
        import pyarrow as pa
        from pyarrow import compute

        if self._words is not None:
            names = pa.array(sorted(self._words), pa.string())
            return compute.index_in(self._text(table), value_set=names).to_numpy()
        if self._kind == "classification":
            return self._labels(table)
        numbers = self._numbers(table)
        return numbers[:, 0] if self._single else numbers

    def _numbers(self, table: Any) -> Array:
        """float64 [rows, names]."""
        columns = [finite(table.column(name), name) for name in self.names]
        for name, values in zip(self.names, columns, strict=True):
            _refuse_missing(np.isnan(values), name)
        return np.stack(columns, axis=1)

    def _labels(self, table: Any) -> Array:
        labels = self._numbers(table)[:, 0]
        bad = no_label(labels)
        if bad.any():
            row = int(bad.argmax())
            problem = f"{labels[row]:.10g} is no label: {LABELS} are, or text"
            raise BadValueError(row, self.names[0], problem)
        return labels.astype(np.int64)

    def _text(self, table: Any) -> Any:
        column = table.column(self.names[0])
        _refuse_missing(column.is_null().to_numpy(), self.names[0])
        return texts(column)


def _refuse_missing(missing: Array, name: str) -> None:
    if missing.any():
        raise BadValueError(int(missing.argmax()), name, "the target is missing")
