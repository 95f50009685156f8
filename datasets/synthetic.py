"""Data made on the spot."""

from __future__ import annotations

import numpy as np

from datasets.split import Array, Splits, split, standardise


def line(rows: int = 32) -> Splits:
    """y = x + 1 for x = 0 … rows − 1, as in Ray's quickstart; x is standardised, and validation sees the same rows."""
    x = np.arange(rows, dtype=np.float32)[:, None]
    return standardise({"train": (x, x + 1), "val": (x, x + 1)})


def classification(
    rows: int = 10_000,
    features: int = 32,
    classes: int = 10,
    noise: float = 0.1,
    val_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """Standard normal inputs [rows, features], labelled by the largest of `classes` random linear scores plus noise."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((rows, features), dtype=np.float32)
    return split(inputs, _scores(inputs, classes, noise, random).argmax(axis=1), val_fraction, seed)


def multilabel(
    rows: int = 10_000,
    features: int = 32,
    labels: int = 5,
    noise: float = 0.1,
    val_fraction: float = 0.2,
    seed: int = 0,
) -> Splits:
    """As `classification`, but each of `labels` scores is a label of its own: 1 where it is above 0."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((rows, features), dtype=np.float32)
    return split(inputs, _scores(inputs, labels, noise, random) > 0, val_fraction, seed)


def _scores(inputs: Array, columns: int, noise: float, random: np.random.Generator) -> Array:
    """[rows, columns] random linear scores of the inputs, with noise of the given share of their deviation."""
    features = inputs.shape[1]
    scores = inputs @ random.standard_normal((features, columns), dtype=np.float32)
    return scores + noise * np.sqrt(features) * random.standard_normal(scores.shape, dtype=np.float32)
