"""One view of arrays, map-style Datasets and sources: the same rows from each, and each bad one named."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from runner.errors import TrainingError
from runner.ingest.checks import Check, Known
from runner.ingest.rows import Arrays, Items, Source, row_bytes
from runner.schema import Task

REGRESSION = Check(Task.regression, "train")
INPUTS = np.arange(20, dtype=np.float32).reshape(10, 2)
TARGETS = np.arange(10, dtype=np.float32)[:, None]


class Table:
    """A source of the rows above that remembers what was asked for."""

    def __init__(self, rows=10):
        self.rows = rows
        self.asked = []

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        self.asked.append((start, stop))
        return INPUTS[start:stop], TARGETS[start:stop]


class Function:
    """A map-style Dataset of ten rows made by a function."""

    def __init__(self, call):
        self.call = call

    def __len__(self):
        return 10

    def __getitem__(self, row):
        return self.call(row)


class Batched(Function):
    def __getitems__(self, rows):
        return [self.call(row) for row in rows]


def kinds():
    return [
        Arrays(INPUTS, TARGETS),
        Items(TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(TARGETS)), 10, REGRESSION),
        Items(Function(lambda row: (INPUTS[row], TARGETS[row])), 10, REGRESSION),
        Items(Batched(lambda row: (INPUTS[row].tolist(), float(row))), 10, REGRESSION),
        Source(Table(), 10, REGRESSION),
    ]


@pytest.mark.parametrize("rows", kinds(), ids=lambda rows: type(rows).__name__)
def test_every_kind_gives_the_same_rows(rows):
    assert len(rows) == 10
    for numbers in ([0], [3, 4, 5], [9, 0, 4, 5, 1]):
        inputs, targets = rows.take(numbers)
        assert inputs.tolist() == INPUTS[numbers].tolist()
        assert targets.tolist() == TARGETS[numbers].tolist()
        assert (inputs.dtype, targets.dtype) == (np.float32, np.float32)
    inputs, targets = rows.read(7, 99)
    assert inputs.tolist() == INPUTS[7:].tolist()
    assert targets.tolist() == TARGETS[7:].tolist()
    assert row_bytes(rows) == 12


def test_a_source_reads_runs_of_neighbours_at_once_and_in_ascending_order():
    table = Table()
    Source(table, 10, REGRESSION).take([7, 2, 9, 1, 8, 3, 5])
    assert table.asked == [(1, 4), (5, 6), (7, 10)]


def draw(row):
    return [row, random.random(), np.random.rand(), torch.rand(()).item()], row


@pytest.mark.parametrize("kind", [Function, Batched])
def test_what_a_dataset_draws_depends_on_seed_and_row_alone(kind):
    rows = Items(kind(draw), 10, REGRESSION)
    expected = {row: rows.take([row], seed=3)[0][0].tolist() for row in range(10)}
    assert len({tuple(values[1:]) for values in expected.values()}) == 10
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert rows.take([4], seed=3)[0][0].tolist() == expected[4]
    assert rows.take([4], seed=4)[0][0].tolist() != expected[4]
    if kind is Function:  # whatever else is in the batch
        assert rows.take([9, 4, 2], seed=3)[0].tolist() == [expected[9], expected[4], expected[2]]


@pytest.mark.parametrize(
    "rows", [Items(Function(draw), 10, REGRESSION), Source(Table(), 10, REGRESSION)], ids=["items", "source"]
)
def test_reading_leaves_the_training_s_random_numbers_alone(rows):
    def drawn(read):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        if read:
            rows.take([1, 2])
        return random.random(), np.random.rand(), torch.rand(3).tolist()

    assert drawn(read=True) == drawn(read=False)


def fails(row):
    if row == 6:
        raise OSError("no such\nimage")
    return INPUTS[row], TARGETS[row]


LINE = f"{__file__}:{fails.__code__.co_firstlineno + 2}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Function(fails), f"dataset: row 6 of split train: OSError: no such image ({LINE})"),
        (Batched(fails), f"dataset: rows 5 … of split train: OSError: no such image ({LINE})"),
        (Function(lambda row: INPUTS[row]), "dataset: row 5 of split train is not a pair (input, target)"),
        (Function(lambda row: ([1.0] * row, 0)), "dataset: row 6 of split train has input of shape (6,), row 5 (5,)"),
        (Function(lambda row: ([1.0, 2.0], [0] * (row == 6))), "dataset: row 6 of split train has target of shape (1,), row 5 (0,)"),
        (Function(lambda row: ([1.0, np.nan if row == 6 else 0], 0)), "dataset: inputs of split train have a NaN or inf in row 6: [ 1. nan]"),
    ],
)  # fmt: skip
def test_a_bad_item_is_named(rows, message):
    with pytest.raises(TrainingError) as failed:
        Items(rows, 10, REGRESSION).take([5, 6])
    assert str(failed.value) == message


class Broken(Table):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def read(self, start, stop):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (ValueError("/data/a.csv: row 8, column 'x': 'q' is no number"), "rows 2 to 3 of split train: /data/a.csv: row 8, column 'x': 'q' is no number"),
        ((INPUTS[:3], TARGETS[:2]), "rows 2 to 3 of split train: read gave 3 inputs and 2 targets"),
        (INPUTS, "rows 2 to 3 of split train: read gave no pair (inputs, targets)"),
        ((INPUTS[:2], [["a"], ["b"]]), "targets of split train are <U1, row 2 is array(['a'], dtype='<U1'): numbers are needed"),
    ],
)  # fmt: skip
def test_a_bad_answer_of_a_source_is_named(answer, message):
    with pytest.raises(TrainingError) as failed:
        Source(Broken(answer), 10, REGRESSION).read(2, 4)
    assert str(failed.value) == f"dataset: {message}"


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([[1.0, 2.0, 3.0]] * 2, [0, 1], "inputs of split train from row 2 on have shape (3,), the first rows (2,) a row"),
        ([[1.0, 2.0], [1.5, 2.0]], [0, 1], "inputs of split train from row 2 on are float32, the first rows int64"),
        ([[1, 2], [1, 2]], [0, 3], "row 3 of split train has label 3, but out_features is 3 (0 to 2); return the right out_features with the splits"),
    ],
)  # fmt: skip
def test_later_rows_must_be_like_the_first_ones(inputs, targets, message):
    check = Check(Task.classification, "train", Known((2,), (), is_float=False, out_features=3))
    with pytest.raises(TrainingError) as failed:
        Source(Broken((inputs, targets)), 10, check).read(2, 4)
    assert str(failed.value) == f"dataset: {message}"


def test_later_integers_become_fractions_like_the_first_rows():
    check = Check(Task.classification, "train", Known((2,), (), is_float=True, out_features=3))
    inputs, _ = Source(Broken(([[1, 2]], [2])), 10, check).read(0, 1)
    assert inputs.dtype == np.float32
