"""What a data set holds, in a word: equal for equal data, another for the smallest change; and what jobs know in common."""

import dataclasses
import os

import numpy as np
import pytest

from runner.errors import ConfigError
from runner.ingest import arrays
from runner.ingest.arrays import Data
from runner.ingest.content import FIRST_ROWS, content
from runner.ingest.rows import Arrays
from runner.known import DATA_SETS, Known, data_key
from runner.plan import DataFacts
from tests.fakes import make_experiment

FACTS = DataFacts(4, 2, (3,), 1)


def columns(rows, dtype=np.float32):
    return np.arange(3 * rows, dtype=dtype).reshape(rows, 3), np.arange(rows, dtype=np.float32).reshape(
        rows, 1
    )


def data(train=None, val=None):
    return Data(
        {"train": Arrays(*(train or columns(4))), "val": Arrays(*(val or columns(2)))},
        FACTS,
    )


def one_bit(array):
    changed = array.copy()
    changed.view(np.uint8).reshape(-1)[-1] ^= 1
    return changed


INPUTS, TARGETS = columns(4)


def test_equal_arrays_have_equal_content_wherever_they_lie():
    strided = np.empty((4, 6), np.float32)[:, ::2]
    strided[:] = INPUTS
    assert not strided.flags["C_CONTIGUOUS"]
    assert content(data((strided, TARGETS.copy())), {}) == content(data(), {})
    assert len(content(data(), {})) == 64


@pytest.mark.parametrize(
    "changed",
    [
        data((one_bit(INPUTS), TARGETS)),
        data((INPUTS, one_bit(TARGETS))),
        data(val=(columns(2)[0], one_bit(columns(2)[1]))),
        data((INPUTS.view(np.int32), TARGETS)),  # the same bytes
        data((INPUTS[::-1], TARGETS[::-1])),
        data((INPUTS[[1, 0, 2, 3]], TARGETS)),
        data((INPUTS.reshape(4, 1, 3), TARGETS)),
        data((INPUTS[:3], TARGETS[:3])),
        data(columns(2), columns(4)),  # the splits exchanged
        data((INPUTS[:3], TARGETS[:3]), columns(3)),  # a row from one split to the other
    ],
    ids=[
        "a bit of an input",
        "a bit of a target",
        "a bit of the validation rows",
        "dtype",
        "order of rows",
        "order of inputs",
        "shape",
        "number of rows",
        "which split",
        "split sizes",
    ],
)
def test_any_change_is_another_content(changed):
    assert content(changed, {}) != content(data(), {})


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Rows that are read as they are needed."""

    length: int

    def __len__(self):
        return self.length

    def read(self, start, stop, seed=0):
        assert (start, stop) == (0, min(self.length, FIRST_ROWS))
        return columns(stop)


def streamed(target, length=4):
    return content(Data({"train": Streamed(length), "val": Streamed(length)}, FACTS), target)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.csv", "b.csv", "deep/c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1,2\n")
        os.utime(tmp_path / name, ns=(5, 5))
    return tmp_path


@pytest.mark.parametrize(
    "path",
    ["{}/*.csv", ["{}/a.csv", "{}/b.csv"], "{}/**/*.csv", "{}"],
    ids=["a glob", "a list", "a deep glob", "a folder"],
)
def test_of_what_is_streamed_the_files_sizes_and_times_count(folder, path):
    def found():
        paths = [each.format(folder) for each in ([path] if isinstance(path, str) else path)]
        return streamed({"_target_": "x", "path": paths if isinstance(path, list) else paths[0], "stride": 3})

    before, file = found(), folder / "b.csv"
    file.write_text("1,2,3\n")
    os.utime(file, ns=(5, 5))
    assert found() != before  # its size
    file.write_text("3,4\n")
    os.utime(file, ns=(5, 5))
    assert found() == before  # neither says so
    os.utime(file, ns=(5, 6))
    assert found() != before  # its time
    os.utime(file, ns=(5, 5))
    file.rename(folder / "d.csv")
    assert found() != before  # its name


def test_files_of_arrays_in_memory_do_not_count(folder):
    target = {"_target_": "x", "path": f"{folder}/*.csv"}
    before = content(data(), target)
    (folder / "a.csv").write_text("9\n")
    assert content(data(), target) == before


def test_arguments_that_are_no_paths_are_no_hindrance():
    odd = {
        "_target_": "x",
        "a": "\0",
        "b": "x" * 5000,
        "c": None,
        "d": {"e": 1},
        "f": [1, None, "s3://there/*"],
    }
    assert streamed(odd) == streamed({"_target_": "x"})


def test_the_length_of_what_is_streamed_counts_beyond_its_first_rows():
    assert streamed({}, FIRST_ROWS + 1) != streamed({}, FIRST_ROWS + 2)


# What jobs know in common


def test_what_was_found_is_not_found_again_and_what_raised_is():
    known, asked = Known(), []

    def find():
        asked.append(len(asked))
        if len(asked) == 1:
            raise ConfigError("no")
        return None if len(asked) == 2 else "another"

    with pytest.raises(ConfigError):
        known.once("machine", 1, find=find)
    assert [known.once("machine", 1, find=find) for _ in range(3)] == [None, None, None]
    assert known.once("machine", 2, find=find) == "another"
    assert asked == [0, 1, 2]


def test_a_data_set_is_loaded_once_and_the_last_ones_stay(monkeypatch):
    loaded = []

    def load(dataset, seed):
        loaded.append((dataset.target["rows"], seed))
        return object()

    monkeypatch.setattr(arrays, "load", load)

    def of(rows, seed=0, **settings):
        target = {"_target_": "datasets.synthetic.line", "rows": rows}
        return make_experiment({"dataset.target": target, "seed": seed, **settings})

    known = Known()
    first = known.data(of(1))
    assert known.data(of(1, **{"optimizer.lr": 0.9, "trainer.batch_size": 4})) is first
    assert known.data(of(2)) is not first
    assert known.data(of(1)) is first  # used again: the other one is the oldest now
    known.data(of(1, seed=1))
    assert DATA_SETS == 2
    assert known.data(of(1)) is first
    known.data(of(2))
    assert loaded == [(1, 0), (2, 0), (1, 1), (2, 0)]
    assert data_key(of(1)) == data_key(of(1)) != data_key(of(1, **{"dataset.drop_last": True}))


def test_a_data_set_that_cannot_be_loaded_is_tried_again(monkeypatch):
    answers = [ConfigError("no such file"), "data"]

    def load(dataset, seed):
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(arrays, "load", load)
    known = Known()
    with pytest.raises(ConfigError):
        known.data(make_experiment())
    assert known.data(make_experiment()) == "data"
