"""A dataset as the driver loads it: what is accepted and converted, and the exact words for what is not."""

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.ingest import arrays
from runner.ingest.rows import Arrays, Items, Source
from runner.plan import DataFacts
from runner.schema import Dataset, Ingest, Split, Task

CLASSIFICATION = Task.classification
NAN = float("nan")


class Table:
    """A source of given arrays that counts what is read."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = np.asarray(inputs), np.asarray(targets)
        self.read_rows = 0

    def __len__(self):
        return len(self.inputs)

    def read(self, start, stop):
        self.read_rows += stop - start
        return self.inputs[start:stop], self.targets[start:stop]


class Pairs:
    """A map-style Dataset of given arrays."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = np.asarray(inputs), np.asarray(targets)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, row):
        return self.inputs[row], self.targets[row]


@pytest.fixture
def dataset(tmp_path, monkeypatch, request):
    """dataset(found, …): a Dataset whose target returns `found` (or raises it)."""
    name = "reader_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    (tmp_path / f"{name}.py").write_text(
        "found = None\n\ndef read(stream=None):\n"
        "    if isinstance(found, Exception):\n        raise found\n"
        "    return found(stream) if callable(found) else found\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(found, task=CLASSIFICATION, **settings):
        __import__(name).found = found
        return Dataset(task, target={"_target_": f"{name}.read", "stream": None}, **settings)

    return make


def pair(inputs, targets):
    return {"train": (inputs, targets), "val": ([[0.0, 0.0]], [0])}


def refusal(dataset):
    with pytest.raises(ConfigError) as refused:
        arrays.load(dataset)
    return str(refused.value)


def test_inputs_become_float32_and_labels_int64(dataset):
    train = arrays.load(dataset(pair([[1, 2], [3, 4.5]], [[1.0], [0.0]]))).splits["train"]
    assert (train.inputs.dtype, train.targets.dtype) == (np.float32, np.int64)
    assert (train.inputs.tolist(), train.targets.tolist()) == ([[1, 2], [3, 4.5]], [1, 0])


def test_arrays_of_the_right_type_are_not_copied(dataset):
    inputs, labels = np.zeros((3, 2), np.float32), np.zeros(3, np.int64)
    train = arrays.load(dataset(pair(inputs, labels))).splits["train"]
    assert np.shares_memory(train.inputs, inputs)


def test_integer_inputs_stay_integers_and_regression_targets_become_columns(dataset):
    found = {"train": ([[1, 2]], [3]), "val": ([[5, 6]], [7.5])}
    splits = arrays.load(dataset(found, Task.regression)).splits
    assert splits["train"].inputs.dtype == np.int64
    assert splits["train"].targets.dtype == np.float32
    assert (splits["train"].targets.tolist(), splits["val"].targets.tolist()) == ([[3.0]], [[7.5]])


def test_integers_beside_fractions_become_fractions(dataset):
    found = {"train": ([[1.5, 2]], [3]), "val": ([[5, 6]], [7.5])}
    assert arrays.load(dataset(found, Task.regression)).splits["val"].inputs.dtype == np.float32


@pytest.mark.parametrize("kind", [Table, Pairs, lambda inputs, targets: (inputs, targets)])
@pytest.mark.parametrize("ingest", Ingest)
class TestEveryKind:
    def test_facts_of_several_regression_targets(self, dataset, kind, ingest):
        found = {"train": kind([[1.0]] * 3, [[1, 2, 3]] * 3), "val": kind([[1.0]], [[1, 2, 3]])}
        data = arrays.load(dataset(found, Task.regression, ingest=ingest))
        assert data.facts == DataFacts(3, 1, (1,), 3)
        assert data.splits["train"].read(0, 1)[1].tolist() == [[1, 2, 3]]

    def test_facts_of_images_and_labels(self, dataset, kind, ingest):
        images = np.zeros((6, 1, 8, 8))
        found = {"train": kind(images, [0, 1, 2, 0, 1, 0]), "val": kind(images[:2], [4, 0])}
        facts = arrays.load(dataset(found, ingest=ingest)).facts
        assert facts == DataFacts(
            6, 2, (1, 8, 8), 5, (3, 2, 1, 0, 0)
        )  # label 4 is in the validation rows only
        assert facts.in_features == 64

    def test_facts_of_tokens(self, dataset, kind, ingest):
        rows = kind([[0, 1, 2], [3, 4, 5]], [[1, 2, 3], [4, 7, -100]])
        data = arrays.load(dataset({"train": rows, "val": rows}, Task.language_modeling, ingest=ingest))
        assert data.facts == DataFacts(2, 2, (3,), 8)
        assert [column.dtype for column in data.splits["val"].read(0, 2)] == [np.int64, np.int64]

    def test_facts_of_several_labels_a_row(self, dataset, kind, ingest):
        rows = kind([[1.0], [2.0]], [[0, 1, 1], [True, False, True]])
        data = arrays.load(dataset({"train": rows, "val": rows}, Task.multilabel, ingest=ingest))
        assert data.facts == DataFacts(2, 2, (1,), 3)
        assert data.splits["train"].read(1, 2)[1].dtype == np.float32

    def test_limit_rows_keeps_the_first_rows_of_each_split(self, dataset, kind, ingest):
        rows = np.arange(10.0)[:, None]
        found = {"train": kind(rows, rows), "val": kind(rows + 100, rows)}
        data = arrays.load(dataset(found, Task.regression, limit_rows=3, ingest=ingest))
        assert (data.facts.train_rows, data.facts.val_rows) == (3, 3)
        assert data.splits["train"].read(0, 9)[0][:, 0].tolist() == [0, 1, 2]
        assert data.splits["val"].read(0, 9)[0][:, 0].tolist() == [100, 101, 102]

    def test_val_split_train_evaluates_on_the_training_rows(self, dataset, kind, ingest):
        found = {"train": kind([[1.0], [2.0]], [0, 1]), "val": kind([[NAN]], [0])}
        data = arrays.load(dataset(found, val_split=Split.train, ingest=ingest))
        assert data.splits["val"] is data.splits["train"]
        assert data.facts.val_rows == 2

    def test_a_bad_row_is_named(self, dataset, kind, ingest):
        found = {"train": kind([[1.0], [2.0], [NAN]], [0, 1, 0]), "val": kind([[1.0]], [0])}
        message = "dataset: inputs of split train have a NaN or inf in row 2: [nan]"
        assert refusal(dataset(found, ingest=ingest)) == message


def test_what_is_read_later_is_checked_in_its_first_rows_alone(dataset, monkeypatch):
    monkeypatch.setattr(arrays, "FIRST_ROWS", 10)
    train, val = Table(np.ones((1000, 2)), np.zeros(1000)), Table(np.ones((5, 2)), np.zeros(5))
    data = arrays.load(dataset({"train": train, "val": val}, ingest=Ingest.ray_data))
    assert (train.read_rows, val.read_rows) == (11, 6)  # one more to know a row's size
    assert isinstance(data.splits["train"], Source)
    assert data.facts.class_counts is None


def test_large_rows_are_checked_up_to_64_mb(dataset, monkeypatch):
    monkeypatch.setattr(arrays, "FIRST_BYTES", 100)
    train = Table(np.ones((1000, 4), np.float32), np.zeros(1000, np.int64))  # 24 bytes a row
    arrays.load(dataset({"train": train, "val": train}, ingest=Ingest.dataloader))
    assert train.read_rows == 2 * (1 + 4)


def test_tensors_read_a_source_once_and_in_full(dataset, monkeypatch):
    monkeypatch.setattr(arrays, "FIRST_ROWS", 10)
    rows = np.arange(25.0)[:, None]
    train = Table(rows, np.arange(25) % 2)
    data = arrays.load(dataset({"train": train, "val": train}, val_split=Split.train))
    assert isinstance(data.splits["train"], Arrays)
    assert data.splits["train"].inputs.tolist() == rows.tolist()
    assert data.facts.class_counts == (13, 12)
    assert train.read_rows == 1 + 25


def test_a_dataset_is_told_whether_it_is_streamed(dataset):
    seen = []
    split = ([[1.0]], [0])

    def found(stream):
        seen.append(stream)
        return {"train": split, "val": split}

    for ingest in Ingest:
        arrays.load(dataset(found, ingest=ingest))
    assert seen == [False, False, True]


def test_preprocessing_classes_and_names_are_kept(dataset):
    names = {"out_features": 3, "class_names": ["a", "b", "c"], "preprocessing": {"vocabulary": [1]}}
    data = arrays.load(dataset({**pair([[1.0, 2.0]], [1]), **names}))
    assert data.preprocessing == {"vocabulary": [1]}
    assert data.facts == DataFacts(1, 1, (2,), 3, (0, 1, 0), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("task", "targets", "extra", "message"),
    [
        (CLASSIFICATION, [5], {"out_features": 5}, "row 0 of split train has label 5, but out_features is 5 (0 to 4); return the right out_features with the splits"),
        (CLASSIFICATION, [1], {"out_features": 2, "class_names": ["a"]}, "{target} returned 1 class_names for out_features=2"),
        (CLASSIFICATION, [1], {"out_features": "two"}, "{target} returned out_features=two: a number of classes is needed"),
        (Task.regression, [1], {"out_features": 2}, "{target} returned out_features=2: the targets have 1 columns"),
    ],
)  # fmt: skip
def test_what_the_dataset_says_of_itself_must_fit(dataset, task, targets, extra, message):
    wrong = dataset({**pair([[1.0, 2.0]], targets), **extra}, task)
    assert refusal(wrong) == f"dataset: {message.format(target=wrong.target['_target_'])}"


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([[1.0, 2.0]], [0, 1], "split train has 1 inputs but 2 targets"),
        (np.zeros((0, 2)), np.zeros(0), "split train has no rows"),
        ([["a", "b"]], [0], "inputs of split train are <U1, row 0 is array(['a', 'b'], dtype='<U1'): numbers are needed"),
        ([[1.0, 2.0], [3.0, NAN]], [0, 1], "inputs of split train have a NaN or inf in row 1: [ 3. nan]"),
        ([[1.0, 2.0], [np.inf, 0.0], [NAN, 0.0]], [0, 1, 1], "inputs of split train have a NaN or inf in row 1: [inf  0.]"),
        ([[1.0, 1e300]], [0], "inputs of split train have a NaN or inf in row 0: [ 1. inf]"),
        ([[1.0, 2.0]], [NAN], "targets of split train have a NaN or inf in row 0: nan"),
        ([[1.0], [2.0], [3.0]], [0, 1, -1], "labels of split train must be whole numbers from 0, one a row; row 2 is -1"),
        ([[1.0], [2.0]], [0, 0.5], "labels of split train must be whole numbers from 0, one a row; row 1 is 0.5"),
        ([[1.0], [2.0]], [[0, 1], [1, 0]], "labels of split train must be whole numbers from 0, one a row; row 0 is [0 1]"),
        ([[1.0], [2.0]], [0, 1], "a training row has shape (1,), a validation row (2,)"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(dataset, inputs, targets, message):
    assert refusal(dataset(pair(inputs, targets))) == f"dataset: {message}"


@pytest.mark.parametrize(
    ("task", "inputs", "targets", "message"),
    [
        (Task.multilabel, [[1.0], [1.0]], [[0, 1], [2, 0]], "targets of split train must be 0 or 1; row 1 has 2"),
        (Task.language_modeling, [[0, 1]], [[1, 2, 3]], "a row of split train has inputs of shape (2,) and targets of shape (3,): language_modeling needs as many targets as inputs, [rows, time]"),
        (Task.language_modeling, [0, 1], [0, 1], "a row of split train has inputs of shape () and targets of shape (): language_modeling needs as many targets as inputs, [rows, time]"),
        (Task.language_modeling, [[0, 1], [2, -1]], [[1, 2], [1, 1]], "inputs of split train must be whole numbers from 0; row 1 has -1"),
        (Task.language_modeling, [[0, 1]], [[1, -1]], "targets of split train must be whole numbers from 0, or -100; row 0 has -1"),
        (Task.language_modeling, [[0, 0.5]], [[1, 1]], "inputs of split train must be whole numbers from 0; row 0 has 0.5"),
        (Task.regression, [[1.0]], [[1.0, 2.0]], "a training row has targets of shape (2,), a validation row (1,)"),
    ],
)  # fmt: skip
def test_bad_rows_of_the_other_tasks_are_named(dataset, task, inputs, targets, message):
    found = {"train": (inputs, targets), "val": ([[0.0]], [0])}
    assert refusal(dataset(found, task)) == f"dataset: {message}"


def test_ragged_rows_are_refused(dataset):
    assert refusal(dataset(pair([[1.0, 2.0], [3.0]], [0, 1]))).startswith(
        "dataset: split train is not a pair (inputs, targets): "
    )


@pytest.mark.parametrize("columns", [None, 7, ([[1.0]],), ([[1.0]], [0], [0])])
def test_a_split_that_is_no_pair_is_refused(dataset, columns):
    message = refusal(dataset({"train": columns, "val": ([[0.0]], [0])}))
    assert message.startswith("dataset: split train is not a pair (inputs, targets): ")


def test_arrays_without_rows_are_refused(dataset):
    assert refusal(dataset(pair(5.0, 1))) == "dataset: split train has a single value where rows are needed"


@pytest.mark.parametrize("kind", [Table, Pairs])
def test_a_split_without_rows_is_refused(dataset, kind):
    empty = kind(np.zeros((0, 2)), np.zeros(0))
    assert refusal(dataset({"train": empty, "val": empty})) == "dataset: split train has no rows"


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


def test_a_label_of_billions_asks_for_no_memory(dataset):
    message = refusal(dataset(pair([[1.0, 2.0]], [2**32])))
    assert message == "dataset: the largest label is 4294967296: 16777215 is the most"


def test_a_dataset_that_cannot_be_sent_to_a_process_is_refused(dataset):
    rows = Pairs([[1.0]], [0])
    rows.transform = lambda row: row
    found = {"train": rows, "val": rows}
    assert isinstance(arrays.load(dataset(found, ingest=Ingest.dataloader)).splits["train"], Items)
    message = refusal(dataset(found, ingest=Ingest.dataloader, loader_workers=2))
    assert message.startswith("dataset.loader_workers=2: the dataset cannot be sent to a process: ")
    assert message.endswith("; type dataset.loader_workers=0")
