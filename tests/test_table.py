"""Tables from files: the arrays and sources that come of them, in every format, whole or in ranges."""

import datetime
import pickle
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets import lines, parquet, table
from datasets.split import hold_out

FORMATS = ("csv", "jsonl", "parquet")
TOWNS = ["Köln", "Paris", "Ōsaka"]


def rows(count, seed=0):
    """A frame with a column of each kind; `id` tells the row, and `y` is a class by name."""
    draws = np.random.default_rng(seed)
    found = pd.DataFrame(
        {
            "id": np.arange(count),
            "größe": draws.standard_normal(count),
            "town": draws.choice(TOWNS, count),
            "paid": draws.random(count) > 0.5,
            "day": pd.date_range("2024-02-28", periods=count, freq="h"),
            "y": draws.choice(["no", "yes"], count),
        }
    )
    found.loc[::5, "größe"] = np.nan
    found.loc[::7, "town"] = None
    return found


def save(frame, path):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True, date_format="iso")
    else:
        frame.to_parquet(path, index=False, row_group_size=11)
    return str(path)


@contextmanager
def pieces_of_few_rows():
    """So that small files have many of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "PIECE_BYTES", 300)
        patch.setattr(parquet, "PIECE_ROWS", 7)
        patch.setattr(parquet, "LEAST_ROWS", 7)
        yield


@pytest.fixture
def small_pieces():
    with pieces_of_few_rows():
        yield


def expected(frame, train):
    """Inputs of a frame by hand; `train` are the training rows."""
    numbers = {
        "id": frame["id"],
        "größe": frame["größe"],
        "paid": frame["paid"],
        "day": (frame["day"] - pd.Timestamp(0)) / pd.Timedelta("1s"),
    }
    columns = []
    for values in numbers.values():
        values = values.to_numpy(np.float64)
        known = values[train][~np.isnan(values[train])]
        columns.append(np.nan_to_num((values - known.mean()) / known.std()))
    return np.stack([*columns, *[(frame["town"] == town).to_numpy(np.float64) for town in TOWNS]], axis=1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_gives_the_same_numbers_in_memory_and_streamed(tmp_path, small_pieces, ending, stream):
    frame = rows(100)
    found = table.read(save(frame, tmp_path / f"rows.{ending}"), "y", val_fraction=0.3, stream=stream)
    held_out = np.sort(np.random.default_rng(0).permutation(100)[:30])
    sides = {"train": np.setdiff1d(np.arange(100), held_out), "val": held_out}
    whole = expected(frame, sides["train"])
    for name, chosen in sides.items():
        split = found[name].read(0, len(found[name])) if stream else found[name]
        assert split[0].dtype == np.float32
        np.testing.assert_allclose(split[0], whole[chosen], rtol=1e-6, atol=1e-6)
        assert split[1].tolist() == (frame["y"] == "yes")[chosen].tolist()
    assert (found["out_features"], found["class_names"]) == (2, ["no", "yes"])


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    """Sources over three files of each format, cut into many pieces, and the same as arrays."""
    folder = tmp_path_factory.mktemp("streamed")
    found = {}
    with pieces_of_few_rows():
        for ending in FORMATS:
            for shard in range(3):
                save(rows(40, seed=shard), folder / f"part-{shard}.{ending}")
            path = f"{folder}/part-*.{ending}"
            found[ending] = table.read(path, "y", stream=True)["train"], table.read(path, "y")["train"]
    return lambda ending: found[ending]  # hypothesis would print all of a dict


@settings(deadline=None, max_examples=30)
@given(ending=st.sampled_from(FORMATS), cuts=st.lists(st.integers(0, 96), max_size=5))
def test_ranges_put_together_are_the_whole_wherever_they_are_cut(streamed, ending, cuts):
    source, (inputs, targets) = streamed(ending)
    assert len(source) == len(inputs) == 96
    ends = [0, *sorted(cuts), 96]
    with pieces_of_few_rows():
        parts = [source.read(start, stop) for start, stop in pairwise(ends)]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), inputs)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), targets)


@settings(deadline=None, max_examples=20)
@given(ending=st.sampled_from(FORMATS), ranges=st.lists(st.tuples(st.integers(0, 96), st.integers(0, 96))))
def test_ranges_may_be_read_in_any_order_and_again(streamed, ending, ranges):
    source, (inputs, _) = streamed(ending)
    with pieces_of_few_rows():
        for start, stop in map(sorted, ranges):
            np.testing.assert_array_equal(source.read(start, stop)[0], inputs[start:stop])


def test_a_source_is_small_and_is_read_by_another_process(tmp_path):
    path = save(rows(50), tmp_path / "rows.parquet")
    found = table.read(path, "y", stream=True)["train"]
    found.read(0, 40)
    packed = pickle.dumps(found)
    assert len(packed) < 5000
    (tmp_path / "source.pickle").write_bytes(packed)
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).read(3, 5)[0].tolist())"
    run = [sys.executable, "-c", program, str(tmp_path / "source.pickle")]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(found.read(3, 5)[0].tolist())


def test_a_thousand_mixed_columns_of_pandas_csv_load_in_one_call(tmp_path):
    draws = np.random.default_rng(1)
    frame = pd.DataFrame({f"zahl {i} ß": draws.standard_normal(60) for i in range(990)})
    frame = frame.mask(draws.random(frame.shape) < 0.1)
    for i in range(10):
        frame[f"текст {i}"] = draws.choice(["a", "b", None], 60)
    frame["目标"] = draws.integers(0, 3, 60)
    frame.to_csv(tmp_path / "wide.csv", index=False)
    found = table.read(str(tmp_path / "wide.csv"), "目标", target_kind="classification")
    inputs, targets = found["train"]
    assert inputs.shape == (48, 990 + 20)
    assert np.isfinite(inputs).all()
    assert found["out_features"] == 3
    train = np.sort(np.random.default_rng(0).permutation(60)[12:])
    assert targets.tolist() == frame["目标"][train].tolist()
    values = frame["zahl 7 ß"].to_numpy()[train]
    by_hand = np.nan_to_num((values - np.nanmean(values)) / np.nanstd(values))
    np.testing.assert_allclose(inputs[:, 7], by_hand, rtol=1e-5, atol=1e-6)
    assert inputs[:, 990].tolist() == (frame["текст 0"][train] == "a").tolist()


def test_files_of_their_own_are_the_validation_rows(tmp_path):
    train, val = rows(20), rows(10, seed=1)
    train, val = train.dropna(), val.dropna()
    found = table.read(
        save(train, tmp_path / "train.csv"), "größe", ["id"], val_path=save(val, tmp_path / "val.csv")
    )
    mean, deviation = train["id"].mean(), train["id"].std(ddof=0)
    np.testing.assert_allclose(found["val"][0][:, 0], (val["id"] - mean) / deviation, rtol=1e-6)
    np.testing.assert_allclose(found["train"][1], train["größe"], rtol=1e-6)
    assert "out_features" not in found


@pytest.mark.parametrize(
    "path", ["memory://bucket/rows.csv", "memory://bucket", "file://{}/rows.csv", "{}/r*.csv"]
)
def test_a_path_may_be_a_uri_a_folder_or_a_glob(tmp_path, path):
    import fsspec

    frame = rows(10)
    place = path.format(tmp_path)
    with fsspec.open("memory://bucket/rows.csv", "w") as file:
        frame.to_csv(file, index=False)
    save(frame, tmp_path / "rows.csv")
    assert len(table.read(place, "y", stream=True)["train"]) == 8


def test_a_compressed_csv_is_read_like_any_other(tmp_path, small_pieces):
    frame = rows(30)
    frame.to_csv(tmp_path / "rows.csv.gz", index=False)
    plain = table.read(save(frame, tmp_path / "plain.csv"), "y")["train"]
    packed = table.read(str(tmp_path / "rows.csv.gz"), "y")["train"]
    np.testing.assert_array_equal(packed[0], plain[0])


@pytest.mark.parametrize("text", ["a,y\n1,2\n\n3,4\n5,6", "\ufeffa,y\r\n1,2\r\n\r\n\r\n3,4\r\n5,6\r\n", "a,y\n\n1,2\n3,4\n5,6\n\n"])  # fmt: skip
def test_blank_lines_crlf_and_a_byte_order_mark_are_no_rows(tmp_path, text):
    (tmp_path / "a.csv").write_bytes(text.encode())
    found = table.read(str(tmp_path / "a.csv"), "y", stream=True, val_fraction=0.3)
    targets = [found[side].read(0, 9)[1].tolist() for side in ("train", "val")]
    assert sorted(targets[0] + targets[1]) == [2, 4, 6]


def test_numbers_may_turn_from_whole_to_broken_after_the_first_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "FIRST_ROWS", 2)
    (tmp_path / "a.csv").write_text("a,y\n1,1\n,2\n2.5,3\n,4\n")
    found = table.read(str(tmp_path / "a.csv"), "y", target_kind="regression")
    assert sorted([*found["train"][1], *found["val"][1]]) == [1, 2, 3, 4]
    assert found["out_features"] == 1


@given(st.integers(2, 60), st.integers(1, 7), st.floats(0.01, 0.99), st.integers(0, 60), st.integers(0, 60))
def test_rows_held_out_in_blocks_are_counted_and_found_as_a_mask_would(rows, block, fraction, low, high):
    if max(1, round(rows * fraction)) == rows:
        with pytest.raises(
            ValueError, match=f"^val_fraction={fraction} of {rows} rows leaves none to train on$"
        ):
            hold_out(rows, fraction, 3, block)
        return
    held_out = hold_out(rows, fraction, 3, block)
    numbers = {name: side.numbers(0, rows) for name, side in held_out.items()}
    assert len(held_out["val"]) == len(numbers["val"]) == max(1, round(rows * fraction))
    np.testing.assert_array_equal(np.sort(np.concatenate(list(numbers.values()))), np.arange(rows))
    for name, side in held_out.items():
        inside = numbers[name][(numbers[name] >= low) & (numbers[name] < high)]
        np.testing.assert_array_equal(side.between(low, max(low, high)), inside)


def test_several_numeric_targets_are_columns(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2, 3], "b": [4.0, 5, 6], "c": [7.0, 8, 9]})
    found = table.read(save(frame, tmp_path / "a.parquet"), ["c", "a"], val_fraction=0.4)
    assert found["out_features"] == 2
    assert sorted(map(tuple, [*found["train"][1].tolist(), *found["val"][1].tolist()])) == [
        (7, 1),
        (8, 2),
        (9, 3),
    ]


def test_booleans_are_numbers_where_targets_are_labels_of_their_own(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2, 3], "b": [True, False, True], "c": [0, 0, 1]})
    path = save(frame, tmp_path / "a.csv")
    found = table.read(path, ["b", "c"], val_path=path, target_kind="multilabel")
    assert (found["out_features"], found["train"][1].tolist()) == (2, [[1, 0], [0, 0], [1, 1]])


def test_booleans_are_classes_and_dates_are_inputs(tmp_path):
    days = [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)]
    frame = pd.DataFrame({"day": days, "y": [True, False, True, True]})
    found = table.read(save(frame, tmp_path / "a.parquet"), "y", val_path=save(frame, tmp_path / "b.parquet"))
    assert (found["class_names"], found["train"][1].tolist()) == (["false", "true"], [1, 0, 1, 1])
    np.testing.assert_allclose(found["train"][0][:, 0], (np.arange(4) - 1.5) / np.sqrt(1.25), rtol=1e-6)


def test_the_blocks_held_out_of_a_stream_are_whole_and_shared_by_no_row(tmp_path):
    frame = pd.DataFrame({"a": np.arange(20_000.0), "y": np.arange(20_000.0)})
    found = table.read(save(frame, tmp_path / "a.parquet"), "y", val_fraction=0.1, stream=True)
    train, val = (found[side].read(0, 20_000)[1] for side in ("train", "val"))
    assert (len(train), len(val)) == (18_000, 2_000)
    np.testing.assert_array_equal(np.sort(np.append(train, val)), np.arange(20_000))
    np.testing.assert_array_equal(val.reshape(100, 20), val[::20, None] + np.arange(20))
    assert set(val[::20] % 20) == {0}
