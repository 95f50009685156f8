"""The readers: rows, shapes, splits, and the values that make them what they say."""

import numpy as np
import pytest

from datasets.split import split, standardise
from datasets.synthetic import classification, line
from datasets.tables import breast_cancer, diabetes, digits

DIGITS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # of each label, as the UCI description says


def rows_of(splits):
    return np.concatenate([splits["train"][0], splits["val"][0]])


def targets_of(splits):
    return np.concatenate([splits["train"][1], splits["val"][1]])


@pytest.mark.parametrize(
    ("reader", "train", "val", "shape"),
    [
        (digits, 1438, 359, (1, 8, 8)),
        (breast_cancer, 455, 114, (30,)),
        (diabetes, 354, 88, (10,)),
        (classification, 8000, 2000, (32,)),
    ],
)
def test_shapes(reader, train, val, shape):
    splits = reader()
    assert list(splits) == ["val", "train"] or list(splits) == ["train", "val"]
    assert splits["train"][0].shape == (train, *shape)
    assert splits["val"][0].shape == (val, *shape)
    assert [len(splits[name][1]) for name in ("train", "val")] == [train, val]


def test_digits_are_all_there_with_their_labels():
    from sklearn.datasets import load_digits

    splits = digits()
    assert np.bincount(targets_of(splits)).tolist() == DIGITS
    assert (rows_of(splits).min(), rows_of(splits).max()) == (0.0, 1.0)
    images, labels = load_digits().images / 16, load_digits().target
    order = np.random.default_rng(0).permutation(1797)  # the first 359 are held out
    for name, rows in (("val", order[:359]), ("train", order[359:])):
        np.testing.assert_array_equal(splits[name][0], images[rows, None])
        np.testing.assert_array_equal(splits[name][1], labels[rows])


def test_breast_cancer_labels():
    assert np.bincount(targets_of(breast_cancer())).tolist() == [212, 357]


def test_diabetes_targets():
    targets = targets_of(diabetes())
    assert (targets.min(), targets.max(), targets.sum()) == (25.0, 346.0, 67243.0)


@pytest.mark.parametrize("reader", [breast_cancer, diabetes])
def test_training_columns_have_mean_0_and_deviation_1_and_validation_uses_the_same_scale(reader):
    train, val = (reader()[name][0] for name in ("train", "val"))
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-12)
    assert np.abs(val.mean(axis=0)).max() > 0.01  # not standardised by its own rows


@pytest.mark.parametrize("reader", [digits, breast_cancer, diabetes, classification])
def test_a_seed_repeats_and_another_differs(reader):
    first, again, other = reader(seed=1), reader(seed=1), reader(seed=2)
    for name in ("train", "val"):
        for column in (0, 1):
            np.testing.assert_array_equal(first[name][column], again[name][column])
    assert not np.array_equal(first["val"][0], other["val"][0])


def test_line_is_exactly_y_is_x_plus_1():
    splits = line(rows=8)
    inputs, targets = splits["train"]
    assert targets[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    x = np.arange(8)
    mean, deviation = 3.5, np.sqrt((8**2 - 1) / 12)
    np.testing.assert_allclose(inputs[:, 0], (x - mean) / deviation, rtol=1e-6)
    np.testing.assert_array_equal(splits["val"][0], inputs)
    np.testing.assert_array_equal(splits["val"][1], targets)
    assert line()["train"][0].shape == (32, 1)


def test_synthetic_labels_without_noise_are_a_linear_argmax():
    splits = classification(rows=400, features=6, classes=3, noise=0.0, seed=4)
    draws = np.random.default_rng(4)
    inputs = draws.standard_normal((400, 6), dtype=np.float32)
    labels = (inputs @ draws.standard_normal((6, 3), dtype=np.float32)).argmax(axis=1)
    found = {tuple(row): label for row, label in zip(rows_of(splits), targets_of(splits), strict=True)}
    assert found == {tuple(row): label for row, label in zip(inputs, labels, strict=True)}


def test_split_is_a_partition_that_keeps_inputs_and_targets_together():
    rows = np.arange(103)
    splits = split(rows[:, None], rows * 10, val_fraction=0.25, seed=3)
    train, val = (set(splits[name][0][:, 0].tolist()) for name in ("train", "val"))
    assert (len(train), len(val)) == (77, 26)  # round(103 × 0.25)
    assert train | val == set(rows.tolist())
    for inputs, targets in splits.values():
        np.testing.assert_array_equal(inputs[:, 0] * 10, targets)
    assert splits["train"][0][:, 0].tolist() != sorted(train)


def test_split_holds_out_at_least_one_row():
    assert len(split(np.zeros((3, 1)), np.zeros(3), 0.01, 0)["val"][0]) == 1


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5])
def test_split_refuses_a_fraction_that_leaves_a_side_empty(fraction):
    with pytest.raises(ValueError, match=f"val_fraction={fraction}: must be between 0 and 1"):
        split(np.zeros((3, 1)), np.zeros(3), fraction, 0)


def test_standardise_uses_the_training_rows_alone_and_zeroes_constant_columns():
    train, val = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[6.0, 5.0]])
    found = standardise({"train": (train, np.zeros(2)), "val": (val, np.zeros(1))})
    assert found["train"][0].tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert found["val"][0].tolist() == [[4.0, 0.0]]
