"""The small real data sets that ship inside scikit-learn."""

from __future__ import annotations

from datasets.split import Splits, split, standardise


def digits(val_fraction: float = 0.2, seed: int = 0) -> Splits:
    """1797 handwritten digits, images [rows, 1, 8, 8] of grey values scaled to [0, 1]; labels 0–9.

    UCI "Optical Recognition of Handwritten Digits" (test part), Alpaydin and Kaynak 1998.
    """
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    return split(inputs.reshape(-1, 1, 8, 8) / 16.0, labels, val_fraction, seed)


def breast_cancer(val_fraction: float = 0.2, seed: int = 0) -> Splits:
    """569 rows, 30 standardised columns; label 1 is benign.

    UCI "Breast Cancer Wisconsin (Diagnostic)", Street, Wolberg and Mangasarian 1993.
    """
    from sklearn.datasets import load_breast_cancer

    inputs, targets = load_breast_cancer(return_X_y=True)
    return standardise(split(inputs, targets, val_fraction, seed))


def diabetes(val_fraction: float = 0.2, seed: int = 0) -> Splits:
    """442 rows, 10 standardised columns; the target is disease progression after a year, 25–346.

    Efron, Hastie, Johnstone and Tibshirani 2004, "Least Angle Regression".
    """
    from sklearn.datasets import load_diabetes

    inputs, targets = load_diabetes(return_X_y=True)
    return standardise(split(inputs, targets, val_fraction, seed))
