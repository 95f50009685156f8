"""A dataset's arrays: what is accepted and converted, and the exact words for what is not."""

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.ingest import arrays
from runner.plan import DataFacts
from runner.schema import Dataset, Split, Task

CLASSIFICATION = Task.classification
NAN = float("nan")


@pytest.fixture
def dataset(tmp_path, monkeypatch, request):
    """dataset(found, …): a Dataset whose target returns `found` (or raises it)."""
    name = "reader_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    (tmp_path / f"{name}.py").write_text(
        "found = None\n\ndef read():\n    if isinstance(found, Exception):\n        raise found\n    return found\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(found, task=CLASSIFICATION, **settings):
        __import__(name).found = found
        return Dataset(task, target={"_target_": f"{name}.read"}, **settings)

    return make


def pair(inputs, targets):
    return {"train": (inputs, targets), "val": ([[0.0, 0.0]], [0])}


def refusal(dataset):
    with pytest.raises(ConfigError) as refused:
        arrays.load(dataset)
    return str(refused.value)


def test_inputs_become_float32_and_labels_int64(dataset):
    splits = arrays.load(dataset(pair([[1, 2], [3, 4.5]], [[1.0], [0.0]])))
    inputs, labels = splits["train"]
    assert (inputs.dtype, labels.dtype) == (np.float32, np.int64)
    assert (inputs.tolist(), labels.tolist()) == ([[1, 2], [3, 4.5]], [1, 0])


def test_integer_inputs_stay_integers_and_regression_targets_become_columns(dataset):
    found = {"train": ([[1, 2]], [3]), "val": ([[5, 6]], [7.5])}
    splits = arrays.load(dataset(found, Task.regression))
    assert splits["train"][0].dtype == np.int64
    assert splits["train"][1].dtype == np.float32
    assert (splits["train"][1].tolist(), splits["val"][1].tolist()) == ([[3.0]], [[7.5]])


def test_several_regression_targets_stay_side_by_side(dataset):
    found = {"train": ([[1.0]], [[1, 2, 3]]), "val": ([[1.0]], [[1, 2, 3]])}
    splits = arrays.load(dataset(found, Task.regression))
    assert splits["train"][1].shape == (1, 3)
    assert arrays.describe(splits, Task.regression) == DataFacts(1, 1, (1,), 3)


def test_limit_rows_keeps_the_first_rows_of_each_split(dataset):
    rows = np.arange(10.0)[:, None]
    found = {"train": (rows, rows[:, 0]), "val": (rows + 100, rows[:, 0])}
    splits = arrays.load(dataset(found, limit_rows=3))
    assert splits["train"][0][:, 0].tolist() == [0, 1, 2]
    assert splits["val"][0][:, 0].tolist() == [100, 101, 102]


def test_val_split_train_evaluates_on_the_training_rows(dataset):
    splits = arrays.load(dataset(pair([[1.0, 2.0]], [1]), val_split=Split.train))
    assert splits["val"][0] is splits["train"][0]
    assert splits["val"][1] is splits["train"][1]


def test_describe_counts_rows_features_and_classes(dataset):
    images = np.zeros((6, 1, 8, 8))
    found = {"train": (images, [0, 1, 2, 0, 1, 2]), "val": (images[:2], [9, 0])}
    facts = arrays.describe(arrays.load(dataset(found)), CLASSIFICATION)
    assert facts == DataFacts(6, 2, (1, 8, 8), 10)  # label 9 is in the validation rows only
    assert facts.in_features == 64


def test_describe_refuses_rows_of_different_shapes():
    splits = {"train": (np.zeros((2, 3)), np.zeros(2)), "val": (np.zeros((2, 4)), np.zeros(2))}
    with pytest.raises(ConfigError) as refused:
        arrays.describe(splits, CLASSIFICATION)
    assert str(refused.value) == "dataset: a training row has shape (3,), a validation row (4,)"


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([[1.0, 2.0]], [0, 1], "split train has 1 inputs but 2 targets"),
        (np.zeros((0, 2)), np.zeros(0), "split train has no rows"),
        ([["a", "b"]], [0], "inputs of split train are <U1, row 0 is array(['a', 'b'], dtype='<U1'): numbers are needed"),
        ([[1.0, 2.0], [3.0, NAN]], [0, 1], "inputs of split train have a NaN or inf in row 1: [ 3. nan]"),
        ([[1.0, 2.0], [np.inf, 0.0], [NAN, 0.0]], [0, 1, 1], "inputs of split train have a NaN or inf in row 1: [inf  0.]"),
        ([[1.0, 2.0]], [NAN], "targets of split train have a NaN or inf in row 0: nan"),
        ([[1.0], [2.0], [3.0]], [0, 1, -1], "labels of split train must be whole numbers from 0, one a row; row 2 is -1"),
        ([[1.0], [2.0]], [0, 0.5], "labels of split train must be whole numbers from 0, one a row; row 1 is 0.5"),
        ([[1.0], [2.0]], [[0, 1], [1, 0]], "labels of split train must be whole numbers from 0, one a row; row 0 is [0 1]"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(dataset, inputs, targets, message):
    assert refusal(dataset(pair(inputs, targets))) == f"dataset: {message}"


def test_ragged_rows_are_refused(dataset):
    assert refusal(dataset(pair([[1.0, 2.0], [3.0]], [0, 1]))).startswith(
        "dataset: split train is not a pair (inputs, targets): "
    )


@pytest.mark.parametrize("columns", [None, 7, ([[1.0]],), ([[1.0]], [0], [0])])
def test_a_split_that_is_no_pair_is_refused(dataset, columns):
    message = refusal(dataset({"train": columns, "val": ([[0.0]], [0])}))
    assert message.startswith("dataset: split train is not a pair (inputs, targets): ")


def test_arrays_without_rows_are_refused(dataset):
    assert refusal(dataset(pair(5.0, 1))).startswith("dataset: split train ")


def test_the_validation_split_is_checked_as_well(dataset):
    found = {"train": ([[1.0]], [0]), "val": ([[NAN]], [0])}
    assert refusal(dataset(found)) == "dataset: inputs of split val have a NaN or inf in row 0: [nan]"


@pytest.mark.parametrize("found", [None, [], {"train": 1}, {"train": 1, "val": 2, "test": 3}])
def test_what_is_not_two_splits_is_refused(dataset, found):
    wrong = dataset(found)
    assert refusal(wrong) == (
        f'dataset: {wrong.target["_target_"]} must return {{"train": (inputs, targets), "val": (inputs, targets)}}'
    )


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "/no.csv"), ValueError("bad header")])
def test_an_error_of_the_reader_is_named_with_it(dataset, error):
    wrong = dataset(error)
    assert refusal(wrong) == (
        f"dataset: {wrong.target['_target_']} failed with {type(error).__name__}: {error}"
    )
