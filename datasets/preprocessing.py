"""Table columns as float32 inputs: numbers standardised, text one-hot, by statistics of the training rows.

Statistics are gathered piece by piece, so that rows larger than memory give the same as rows in memory. What comes of
them is kept twice: as `Encoding`, which works on arrow columns at the speed of reading, and as scikit-learn's own
ColumnTransformer, which turns `frame(raw rows)` into the same inputs anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datasets.columns import finite, floats, kind, texts
from datasets.split import Array

MAX_COUNTED = 100_000  # different texts of a column that are counted: the first ones


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of the values that are there, merged piece by piece.

    Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances".
    (scikit-learn 1.9's partial_fit turns to NaN at a piece in which a column has no value.)
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def update(self, values: Array) -> None:
        values = values[~np.isnan(values)].astype(np.float64)
        if len(values):
            mean = float(values.mean())
            squares = float(np.square(values - mean).sum())
            both, apart = self.count + len(values), mean - self.mean
            self.squares += squares + apart**2 * self.count * len(values) / both
            self.mean += apart * len(values) / both
            self.count = both

    @property
    def variance(self) -> float:
        return self.squares / self.count if self.count else 0.0

    @property
    def scale(self) -> float:
        """What to divide by: the standard deviation; 1 for a constant, inf for a column without values (all 0 then)."""
        if not self.count:
            return float("inf")
        rounding = (
            self.count * np.finfo(np.float64).eps * abs(self.mean)
        )  # StandardScaler's bound of a constant
        deviation = float(np.sqrt(self.variance))
        return deviation if deviation > rounding else 1.0


@dataclass
class Statistics:
    """What the training rows say about each column."""

    kinds: dict[str, str]  # of the columns that are inputs
    moments: dict[str, Moments] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moments = {name: Moments() for name, found in self.kinds.items() if found != "text"}
        self.counts = {name: {} for name, found in self.kinds.items() if found == "text"}

    def update(self, table: Any) -> None:
        """Add an arrow table's rows. Raises BadValueError for an infinite value."""
        for name, moments in self.moments.items():
            moments.update(finite(table.column(name), name))
        for name, counts in self.counts.items():
            _count(table.column(name), counts)

    def encoding(self, max_categories: int) -> Encoding:
        """Of each text column the `max_categories` most frequent texts, equally frequent ones in order, get an input."""
        kept = {}
        for name, counts in self.counts.items():
            frequent = sorted(counts, key=lambda text: (-counts[text], text))[:max_categories]
            kept[name] = sorted(frequent)
        return Encoding(self.moments, kept)

    def without_values(self) -> list[str]:
        """Columns that are missing in all training rows; their inputs are 0, or none at all for text."""
        missing = [name for name, moments in self.moments.items() if not moments.count]
        return missing + [name for name, counts in self.counts.items() if not counts]


@dataclass(frozen=True)
class Encoding:
    """Inputs [rows, width]: first (x − mean) / scale of each number column, 0 where x is missing, then one-hot texts.

    A text that is missing or not among the categories gives zeros.
    """

    moments: dict[str, Moments]
    categories: dict[str, list[str]]

    @property
    def width(self) -> int:
        return len(self.moments) + sum(len(kept) for kept in self.categories.values())

    def encode(self, table: Any, inputs: Array) -> None:
        """Write an arrow table's rows into `inputs`, float32 [rows, width]. Raises BadValueError for infinite values."""
        import pyarrow as pa
        from pyarrow import compute

        for at, (name, moments) in enumerate(self.moments.items()):
            values = floats(table.column(name))
            inputs[:, at] = (values - np.float64(moments.mean)) / np.float64(moments.scale)
        numbers = inputs[:, : len(self.moments)]
        whole = np.isfinite(numbers)
        if not whole.all():
            for name in self.moments:
                finite(table.column(name), name)
            numbers[~whole] = 0.0
        at = len(self.moments)
        for name, kept in self.categories.items():
            found = compute.index_in(texts(table.column(name)), value_set=pa.array(kept, pa.string()))
            index = found.fill_null(-1).to_numpy()
            inputs[:, at : at + len(kept)] = index[:, None] == np.arange(len(kept))
            at += len(kept)

    def estimator(self) -> Any:
        """The same as a fitted sklearn ColumnTransformer over `frame`.

        It is kept by skops, which has to be told to trust `numpy.dtype` (SimpleImputer keeps one).
        """
        import pandas as pd
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        numbers, words = list(self.moments), [name for name, kept in self.categories.items() if kept]
        kept = [np.array(self.categories[name], dtype=object) for name in words]
        scale = Pipeline(
            [("scale", StandardScaler()), ("impute", SimpleImputer(strategy="constant", fill_value=0))]
        )
        one_hot = OneHotEncoder(categories=kept, handle_unknown="ignore", sparse_output=False)
        parts = [("numbers", scale, numbers), ("texts", one_hot, words)]
        whole = ColumnTransformer([part for part in parts if part[2]], verbose_feature_names_out=False)
        row = {
            **{name: [0.0] for name in numbers},
            **{name: [one[0]] for name, one in zip(words, kept, strict=True)},
        }
        whole.fit(pd.DataFrame(row))
        if numbers:
            scaler = whole.named_transformers_["numbers"]["scale"]
            scaler.mean_ = np.array([self.moments[name].mean for name in numbers])
            scaler.var_ = np.array([self.moments[name].variance for name in numbers])
            scaler.scale_ = np.array([self.moments[name].scale for name in numbers])
            scaler.n_samples_seen_ = np.array([self.moments[name].count for name in numbers])
        return whole


def frame(rows: Any) -> Any:
    """The pandas frame that the estimator takes, of raw rows: a pandas frame or an arrow table.

    Numbers and booleans become float64, dates and timestamps seconds since 1970, texts plain strings, or missing.
    """
    import pandas as pd
    import pyarrow as pa

    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows, preserve_index=False)
    columns = {
        field.name: texts(table.column(field.name)).to_numpy(zero_copy_only=False)
        if kind(field.type) == "text"
        else floats(table.column(field.name)).astype(np.float64)
        for field in table.schema
    }
    return pd.DataFrame(columns)


def _count(column: Any, counts: dict[str, int]) -> None:
    for pair in texts(column).value_counts().to_pylist():
        text = pair["values"]
        if text in counts:
            counts[text] += pair["counts"]
        elif text is not None and len(counts) < MAX_COUNTED:
            counts[text] = pair["counts"]
