"""Rows split into training and validation, and inputs standardised by the training rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Splits = dict[str, tuple[Array, Array]]


def split(inputs: Array, targets: Array, val_fraction: float, seed: int) -> Splits:
    """{"train": (inputs, targets), "val": …}: a seeded shuffle, its first round(rows × val_fraction) rows are val."""
    if not 0 < val_fraction < 1:
        raise ValueError(f"val_fraction={val_fraction} must be between 0 and 1")
    order = np.random.default_rng(seed).permutation(len(inputs))
    held_out = max(1, round(len(inputs) * val_fraction))
    rows = {"val": order[:held_out], "train": order[held_out:]}
    return {name: (inputs[chosen], targets[chosen]) for name, chosen in rows.items()}


def standardise(splits: Splits) -> Splits:
    """Inputs with mean 0 and standard deviation 1 a column over the training rows; constant columns become 0."""
    train = splits["train"][0]
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    return {name: ((inputs - mean) / scale, targets) for name, (inputs, targets) in splits.items()}
