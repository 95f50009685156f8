"""Data made on the spot."""

from __future__ import annotations

import numpy as np

from datasets.split import Splits, split, standardise


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
    scores = inputs @ random.standard_normal((features, classes), dtype=np.float32)
    scores += noise * np.sqrt(features) * random.standard_normal(scores.shape, dtype=np.float32)
    return split(inputs, scores.argmax(axis=1), val_fraction, seed)
