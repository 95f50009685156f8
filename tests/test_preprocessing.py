"""Statistics of training rows, the inputs they give, and the estimator that gives the same anywhere."""

import datetime
import decimal
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import skops.io
from hypothesis import given
from hypothesis import strategies as st

from datasets import preprocessing, table
from datasets.columns import floats, kind
from datasets.preprocessing import Moments, Statistics, frame

TRUSTED = ["numpy.dtype"]


def mixed(rows):
    draws = np.random.default_rng(7)
    found = pd.DataFrame(
        {
            "größe": 1e6 + draws.standard_normal(rows),
            "count": draws.integers(0, 2**40, rows),
            "paid": draws.random(rows) > 0.5,
            "when": pd.date_range("1969-12-31", periods=rows, freq="h"),
            "price": [decimal.Decimal(int(cents)).scaleb(-2) for cents in draws.integers(0, 999, rows)],
            "narrow": draws.standard_normal(rows).astype(np.float32),
            "town": draws.choice(["Köln", "Paris", "Ōsaka", "Oslo"], rows),
            "empty": np.full(rows, np.nan),
            "constant": 0.1,
            "y": draws.integers(0, 2, rows),
        }
    )
    found.loc[::5, "größe"] = np.nan
    found.loc[::3, ["town", "when"]] = None
    return found


def encoding_of(raw, **options):
    found = pa.Table.from_pandas(raw, preserve_index=False)
    statistics = Statistics({field.name: kind(field.type) for field in found.schema})
    statistics.update(found)
    return statistics.encoding(**{"max_categories": 32, **options})


def encoded(encoding, raw):
    inputs = np.empty((len(raw), encoding.width), np.float32)
    encoding.encode(pa.Table.from_pandas(raw, preserve_index=False), inputs)
    return inputs


def test_the_estimator_goes_through_skops_and_gives_the_very_inputs_of_the_training(tmp_path):
    raw = mixed(200)
    raw.to_parquet(tmp_path / "rows.parquet")
    found = table.read(str(tmp_path / "rows.parquet"), "y", val_path=str(tmp_path / "rows.parquet"))
    kept = skops.io.dumps(found["preprocessing"])
    assert set(skops.io.get_untrusted_types(data=kept)) <= set(TRUSTED)
    loaded = skops.io.loads(kept, trusted=TRUSTED)
    for rows in (raw, pa.Table.from_pandas(raw)):
        np.testing.assert_allclose(loaded.transform(frame(rows)), found["train"][0], rtol=1e-6, atol=1e-6)
    seconds = (raw["when"] - pd.Timestamp(0)) / pd.Timedelta("1s")  # a frame needs no more than this
    again = loaded.transform(raw.assign(when=seconds).astype({"narrow": np.float64}))
    np.testing.assert_allclose(again, found["train"][0], rtol=1e-6, atol=1e-6)


def test_statistics_by_pieces_are_those_of_the_whole():
    raw = mixed(120)
    whole = encoding_of(raw)
    kinds = {name: "text" if name == "town" else "number" for name in raw}
    for cuts in ([0, 1, 2, 60, 120], [0, 0, 119, 120], list(range(121))):
        statistics = Statistics(kinds)
        for start, stop in pairwise(cuts):
            statistics.update(pa.Table.from_pandas(raw[start:stop], schema=pa.Schema.from_pandas(raw)))
        pieces = statistics.encoding(32)
        assert pieces.categories == whole.categories
        np.testing.assert_allclose(encoded(pieces, raw), encoded(whole, raw), rtol=1e-6, atol=1e-6)


values = st.floats(-1e6, 1e6) | st.just(float("nan"))


@given(st.lists(st.lists(values, max_size=5), max_size=6))
def test_moments_merged_are_numpy_s_own(pieces):
    moments = Moments()
    for piece in pieces:
        moments.update(np.array(piece, dtype=np.float64))
    together = np.array([value for piece in pieces for value in piece if not np.isnan(value)])
    assert moments.count == len(together)
    if len(together):
        assert moments.mean == pytest.approx(together.mean(), rel=1e-9, abs=1e-6)
        assert moments.variance == pytest.approx(together.var(), rel=1e-6, abs=1e-3)


def test_moments_scale_like_sklearn_s_scaler():
    from sklearn.preprocessing import StandardScaler

    raw = mixed(100)[["größe", "count", "constant"]]
    scaler = StandardScaler().fit(raw)
    for index, name in enumerate(raw):
        moments = Moments()
        moments.update(raw[name].to_numpy(np.float64))
        assert moments.mean == pytest.approx(scaler.mean_[index], rel=1e-12)
        assert moments.scale == pytest.approx(scaler.scale_[index], rel=1e-9)


def test_what_is_missing_in_all_training_rows_is_nought_and_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(table.log, "disabled", False)  # MLflow's migrations disable the loggers that exist
    caplog.set_level("WARNING", table.log.name)
    pd.DataFrame({"a": [1.0, 2], "gone": [None, None], "y": [0, 1]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"a": [3.0], "gone": [5.0], "y": [0]}).to_csv(tmp_path / "b.csv", index=False)
    found = table.read(str(tmp_path / "a.csv"), "y", val_path=str(tmp_path / "b.csv"))
    assert found["train"][0].tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert found["val"][0].tolist() == [[3.0, 0.0]]
    assert found["preprocessing"].transform(pd.DataFrame({"a": [3.0], "gone": [5.0]})).tolist() == [
        [3.0, 0.0]
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "column 'gone' has no value in the training rows: its inputs are 0"
    ]


def test_a_text_column_without_values_has_no_input():
    raw = pd.DataFrame({"a": [1.0, 3.0], "t": pd.Series([None, None], dtype="str")})
    assert encoded(encoding_of(raw), raw).tolist() == [[-1.0], [1.0]]
    assert encoding_of(raw).estimator().transform(frame(raw)).tolist() == [[-1.0], [1.0]]


def test_the_most_frequent_texts_get_inputs_and_others_none():
    raw = pd.DataFrame({"t": ["c", "c", "b", "a", "b", "d", None, "a"]})
    found = encoding_of(raw, max_categories=2)
    assert found.categories == {"t": ["a", "b"]}  # a, b and c are equally frequent
    assert encoded(found, pd.DataFrame({"t": ["b", "c", None, "new", "a"]})).tolist() == [
        [0, 1], [0, 0], [0, 0], [0, 0], [1, 0],
    ]  # fmt: skip
    again = found.estimator().transform(pd.DataFrame({"t": ["b", "c", None, "new", "a"]}))
    assert again.tolist() == [[0, 1], [0, 0], [0, 0], [0, 0], [1, 0]]


def test_texts_beyond_the_limit_are_not_counted(monkeypatch):
    monkeypatch.setattr(preprocessing, "MAX_COUNTED", 2)
    raw = pd.DataFrame({"t": ["a", "b", "c", "c", "b"]})
    assert encoding_of(raw).categories == {"t": ["a", "b"]}


HOUR = datetime.timedelta(hours=1)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([1, None, 3], pa.uint8()), [1, np.nan, 3]),
        (pa.array([0.5, None], pa.float16()), [0.5, np.nan]),
        (pa.array([decimal.Decimal("1.25"), None]), [1.25, np.nan]),
        (pa.array([True, None, False]), [1, np.nan, 0]),
        (pa.array([None, None]), [np.nan, np.nan]),
        (pa.array([datetime.date(1970, 1, 2), None]), [86400, np.nan]),
        (pa.array([datetime.date(1969, 12, 31)], pa.date64()), [-86400]),
        (pa.array([1500], pa.timestamp("ms", "Europe/Berlin")), [1.5]),
        (pa.array([None, 3], pa.timestamp("ns")), [np.nan, 3e-9]),
        (pa.array([datetime.time(1, 0, 1)], pa.time64("us")), [3601]),
        (pa.array([HOUR, None], pa.duration("us")), [3600, np.nan]),
        (pa.array([7, None, 7]).dictionary_encode(), [7, np.nan, 7]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_columns_become_numbers_times_seconds(column, found):
    assert kind(column.type) != "text"
    np.testing.assert_array_equal(floats(column), found)


@pytest.mark.parametrize("arrow_type", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])  # fmt: skip
def test_every_type_of_text_gives_the_same_inputs(arrow_type):
    rows = pa.table({"t": pa.array(["b", None, "a"], pa.string()).cast(arrow_type)})
    statistics = Statistics({"t": kind(arrow_type)})
    statistics.update(rows)
    inputs = np.empty((3, 2), np.float32)
    statistics.encoding(32).encode(rows, inputs)
    assert inputs.tolist() == [[0, 1], [0, 0], [1, 0]]
    assert frame(rows)["t"].fillna("none").tolist() == ["b", "none", "a"]
