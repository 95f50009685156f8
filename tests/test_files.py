"""What files a path means, and the one line that says what is wrong with them or in them."""

import gzip
import pickle

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from datasets import lines, table
from datasets.files import ending, find


def write(folder, **texts):
    for name, text in texts.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_bytes(text if isinstance(text, bytes) else text.encode())


def refusal(path, target="y", **more):
    """The error of reading, the same in memory and streamed."""
    messages = []
    for stream in (False, True):
        with pytest.raises(ValueError, match=r".") as caught:
            table.read(str(path), target, **more, stream=stream)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]
    return messages[0]


def test_names_are_sorted_and_hidden_ones_left_out(tmp_path):
    for name in ("b.csv", "a.csv", "_SUCCESS", ".b.csv.crc", "notes.txt", "deep/c.CSV", "_old/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert find(str(tmp_path), ["csv"]).names == [
        f"{tmp_path}/{name}" for name in ("a.csv", "b.csv", "deep/c.CSV")
    ]
    assert find(f"{tmp_path}/*.csv", ["csv"]).names == [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"]
    assert find([f"{tmp_path}/b.csv", f"{tmp_path}/a.csv"], ["csv"]).names == [
        f"{tmp_path}/b.csv",
        f"{tmp_path}/a.csv",
    ]


def test_a_name_with_a_glob_s_characters_is_that_file(tmp_path):
    (tmp_path / "rows[1].csv").write_text("x")
    assert find(f"{tmp_path}/rows[1].csv", ["csv"]).names == [f"{tmp_path}/rows[1].csv"]


def test_relative_paths_become_absolute_for_workers_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x")
    assert find("a.csv", ["csv"]).names == [f"{tmp_path}/a.csv"]


@pytest.mark.parametrize(
    ("name", "found"),
    [("a.csv", "csv"), ("a.b.CSV", "csv"), ("a.csv.gz", "csv"), ("a", ""), ("a.parquet", "parquet")],
)
def test_the_ending_says_the_format(name, found):
    assert ending(name) == found


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("trian.csv", "{}/trian.csv: no such file; did you mean train.csv?"),
        ("zzz", "{}/zzz: no such file; {} has notes, train.csv"),
        ("*.parquet", "{}/*.parquet: no such file; {} has notes, train.csv"),
        ("none/a.csv", "{}/none/a.csv: no such file ({}/none is missing too)"),
        ("notes", "{}/notes: no file in this folder ends in .csv"),
    ],
)
def test_a_missing_file_is_named_with_the_nearest(tmp_path, path, message):
    (tmp_path / "train.csv").write_text("x")
    (tmp_path / "notes").mkdir()
    with pytest.raises(ValueError, match=r".") as caught:
        find(f"{tmp_path}/{path}", ["csv"])
    assert str(caught.value) == message.replace("{}", str(tmp_path))


def test_a_protocol_nobody_knows_and_a_file_named_twice_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ValueError, match=r"^nope://a\.csv: Protocol not known: nope"):
        find("nope://a.csv", ["csv"])
    with pytest.raises(ValueError, match=r"a\.csv: is there twice in path="):
        find([f"{tmp_path}/a.csv", f"{tmp_path}/*.csv"], ["csv"])


GOOD = "a,b,y\n1,x,0\n2,x,1\n3,z,0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b,y\n", "has no rows"),
        ("a,a,y\n1,2,3\n", "column 'a' is there twice in the header"),
        (GOOD + "oops,x,0\n", "row 4 (line 5), column 'a': 'oops' is not a number; columns: a: number, b: text, y: number"),
        (GOOD + "\n4,x\n", "row 4 (line 6): number of values is 2, of names in the header 3; columns: a: number, b: text, y: number"),
        (GOOD + '4,"x\nz",1\n', "row 4 (line 5): number of values is 2, of names in the header 3; columns: a: number, b: text, y: number"),
        (GOOD + "4,x,\n", "row 4 (line 5), column 'y': the target is missing; columns: y: number, a: number, b: text"),
        (GOOD + "inf,x,1\n", "row 4 (line 5), column 'a': inf is not finite; columns: a: number, b: text, y: number"),
        (GOOD.encode() + b"4,\xff,1\n", "row 4 (line 5), column 'b': '\\udcff' is not text (UTF-8); columns: b: text, a: number, y: number"),
    ],
)  # fmt: skip
def test_a_csv_s_fault_is_named_by_file_row_and_column(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(lines, "FIRST_ROWS", 3)
    write(tmp_path, a_csv=text)
    assert refusal(tmp_path / "a.csv", target_kind="classification") == f"{tmp_path}/a.csv: {message}"


OBJECTS = '{"a": 1, "y": 0}\n{"a": 2, "y": 1}\n\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "oops", "y": 0}', "row 3 (line 4), column 'a': 'oops' is not a number; columns: a: number, y: number"),
        ('{"a": 1, "y": 0', "row 3 (line 4): is no JSON: Expecting ',' delimiter: line 1 column 16 (char 15); columns: a: number, y: number"),
        ("[1, 2]", "row 3 (line 4): [1, 2] is no JSON object; columns: a: number, y: number"),
        ('{"a": 1, "z": 0}', "row 3 (line 4), column 'z': is not in the first rows; columns: a: number, y: number"),
        ('{"a": 1}', "row 3 (line 4), column 'y': the target is missing; columns: y: number, a: number"),
        ('{"a": 1, "y": 0.5}', "row 3 (line 4), column 'y': 0.5 is no label: whole numbers from 0 to 16777215 are, or text; columns: y: number, a: number"),
    ],
)  # fmt: skip
def test_a_json_line_s_fault_is_named_by_file_row_and_column(tmp_path, monkeypatch, text, message):
    monkeypatch.setattr(lines, "FIRST_ROWS", 3)
    write(tmp_path, a_jsonl=OBJECTS + text + "\n")
    assert refusal(tmp_path / "a.jsonl", target_kind="classification") == f"{tmp_path}/a.jsonl: {message}"


def test_rows_are_counted_within_their_own_file_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "PIECE_BYTES", 8)
    write(tmp_path, a_csv="a,y\n1,0\n2,1\n", b_csv="y,a\n0,1\n1,2\n0,3\n1,oops\n")
    message = "b.csv: row 4 (line 5), column 'a': 'oops' is not a number; columns: a: number, y: number"
    assert refusal(tmp_path) == f"{tmp_path}/{message}"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"target": "Y"}, "a.csv: no column 'Y'; did you mean y?; columns: a: number, b: text, y: number"),
        ({"columns": ["aa"]}, "a.csv: no column 'aa'; did you mean a?; columns: a: number, b: text, y: number"),
        ({"columns": ["a", "a"]}, "column 'a' is there twice: in `columns`, or there and in `target`"),
        ({"target": ["a", "b", "y"]}, "a.csv: has no column besides the target ['a', 'b', 'y']"),
        ({"format": "cvs"}, "format=cvs: must be one of parquet, pq, csv, jsonl, ndjson, json; did you mean csv?"),
        ({"target_kind": "labels"}, "target_kind=labels: must be one of classification, regression, multilabel"),
        ({"target": ["a", "b"]}, "target column 'b' is text: a list of targets needs numbers"),
        ({"target": "b", "target_kind": "regression"}, "target column 'b' is text: a regression needs numbers"),
        ({"target": ["a", "y"], "target_kind": "classification"}, "target=['a', 'y']: a classification has one target column"),
        ({"val_fraction": 1.5}, "val_fraction=1.5: must be between 0 and 1"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_what_there_is(tmp_path, more, message):
    write(tmp_path, a_csv=GOOD)
    found = refusal(tmp_path / "a.csv", **more)
    assert found.removeprefix(f"{tmp_path}/") == message


def test_a_wide_schema_is_cut_to_what_helps(tmp_path):
    header = ",".join([*(f"c{i}" for i in range(1000)), "y"])
    write(tmp_path, a_csv=f"{header}\n" + 2 * ("1," * 1000 + "0\n"))
    listed = ", ".join(f"c{i}: number" for i in range(10))
    message = f"{tmp_path}/a.csv: no column 'zz'; columns: {listed}, … 991 more"
    assert refusal(tmp_path / "a.csv", "zz") == message


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"a": [1.0], "y": [1]}, "column 'b' is missing, which {}/a.parquet has"),
        (
            {"a": [1.0], "bb": ["x"], "y": [1]},
            "column 'b' is missing, which {}/a.parquet has; did you mean bb?",
        ),
        ({"a": ["x"], "b": ["x"], "y": [1]}, "column 'a' is text, in {}/a.parquet number"),
        ({"a": [1], "b": ["x"], "c": [1], "y": [1]}, "column 'c' is not in {}/a.parquet"),
    ],
)
def test_files_with_other_columns_are_refused_by_name(tmp_path, second, message):
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": ["x", "z"], "y": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    assert refusal(tmp_path) == f"{tmp_path}/b.parquet: " + message.format(tmp_path)
    found = refusal(tmp_path / "a.parquet", val_path=str(tmp_path / "b.parquet"))
    assert found == f"{tmp_path}/b.parquet: " + message.format(tmp_path)


def test_columns_that_are_not_asked_for_may_differ_and_be_of_any_type(tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.0], "list": [[1], [2]], "y": [0, 1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": [1], "a": [3]}), tmp_path / "b.parquet")
    assert len(table.read(str(tmp_path), "y", ["a"], stream=True)["train"]) == 2
    found = refusal(tmp_path / "a.parquet")
    what = "column 'list' is list<element: int64>: only numbers, text, booleans and times can be read"
    assert found == f"{tmp_path}/a.parquet: {what}; name others in `columns`"


def test_a_broken_parquet_or_gzip_is_named(tmp_path):
    write(tmp_path, a_parquet=b"PAR1 no parquet", b_csv=gzip.compress(GOOD.encode())[:20])
    (tmp_path / "b.csv").rename(tmp_path / "b.csv.gz")
    assert refusal(tmp_path / "a.parquet").startswith(f"{tmp_path}/a.parquet: cannot be read: ")
    assert refusal(tmp_path / "b.csv.gz").startswith(f"{tmp_path}/b.csv.gz: cannot be read: ")


def test_formats_are_told_by_ending_or_by_format(tmp_path):
    write(tmp_path, a_csv=GOOD, b_jsonl=OBJECTS, c_txt=GOOD)
    both = f"{tmp_path}/a.csv and {tmp_path}/b.jsonl: files of one table must have one format"
    assert refusal(tmp_path) == both
    assert refusal(tmp_path / "c.txt").startswith(
        f"{tmp_path}/c.txt: no known ending; say format=parquet or "
    )
    assert len(table.read(str(tmp_path / "c.txt"), "y", format="csv")["train"][0]) == 2


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_that_changed_after_its_rows_were_counted_is_named(tmp_path, name):
    def save(rows):
        frame = pd.DataFrame({"a": range(rows), "y": range(rows)})
        frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)

    path = tmp_path / name
    save(30)
    source = pickle.dumps(table.read(str(path), "y", stream=True)["train"])
    save(3)
    with pytest.raises(ValueError, match=f"^{path}: has changed since its rows were counted$"):
        pickle.loads(source).read(0, 20)


def test_empty_parts_beside_others_do_no_harm(tmp_path):
    pd.DataFrame({"a": [1.0, 2], "y": [0, 1]}).to_parquet(tmp_path / "b.parquet")
    pd.DataFrame({"a": pd.Series([], dtype=float), "y": pd.Series([], dtype=int)}).to_parquet(
        tmp_path / "a.parquet"
    )
    assert len(table.read(str(tmp_path), "y", stream=True)["train"]) == 1


def test_a_file_of_another_filesystem_is_named_too(monkeypatch):
    monkeypatch.setattr(lines, "FIRST_ROWS", 3)
    with fsspec.open("memory://refused/a.csv", "w") as file:
        file.write(GOOD + "oops,x,0\n")
    with pytest.raises(
        ValueError, match=r"^/refused/a.csv: row 4 \(line 5\), column 'a': 'oops' is not a number"
    ):
        table.read("memory://refused/a.csv", "y")


def test_a_table_whose_inputs_are_all_missing_is_refused(tmp_path):
    pq.write_table(pa.table({"t": pa.array([None, None], pa.string()), "y": [0, 1]}), tmp_path / "a.parquet")
    message = f"{tmp_path}/a.parquet: no column has a value in the training rows; columns: t: text, y: number"
    assert refusal(tmp_path / "a.parquet") == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "a,b,y\n1,x,0\n1,x\n", "row 2 (line 3): number of values is 2, of names in the header 3"),
        ("a.jsonl", '{"a": 1}\n{"a": "x"}\n', "row 2 (line 2): cannot be parsed: is a name there twice, or do the first rows mix types?"),
        ("a.jsonl", '{"a": 1}\n{"a": 1, "a": 2}\n', "row 2 (line 2): cannot be parsed: is a name there twice, or do the first rows mix types?"),
    ],
)  # fmt: skip
def test_a_fault_among_the_rows_that_say_the_types_is_named_by_its_row(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    assert refusal(tmp_path / name) == f"{tmp_path}/{name}: {message}"
