"""Text as next-token examples: every token predicted once, nothing seen before it is asked for."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets import text as reader
from datasets.text import IGNORED, divide, encode, read, text, windows


def written(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.txt").write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_windows():
    tokens = np.array([10, 11, 12, 13, 14, 15, 16])
    inputs, targets = windows(tokens, context_length=4, stride=4)
    assert inputs.tolist() == [[10, 11, 12, 13], [14, 15, 0, 0]]
    assert targets.tolist() == [[11, 12, 13, 14], [15, 16, -100, -100]]
    inputs, targets = windows(tokens, context_length=4, stride=2)
    assert inputs.tolist() == [[10, 11, 12, 13], [12, 13, 14, 15]]
    assert targets.tolist() == [[11, 12, 13, 14], [13, 14, 15, 16]]
    assert [column.tolist() for column in windows(tokens[:2], 3, 3)] == [[[10, 0, 0]], [[11, -100, -100]]]


@given(length=st.integers(2, 60), context_length=st.integers(1, 12), data=st.data())
def test_each_token_but_the_first_is_a_target_and_follows_its_input(length, context_length, data):
    stride = data.draw(st.integers(1, context_length))
    tokens = np.arange(100, 100 + length)  # each one names its place
    inputs, targets = windows(tokens, context_length, stride)
    counted = targets != IGNORED
    np.testing.assert_array_equal(targets[counted], inputs[counted] + 1)
    assert counted[:-1].all()
    assert set(targets[counted].tolist()) == set(tokens[1:].tolist())
    if stride == context_length:
        assert targets[counted].tolist() == tokens[1:].tolist()  # once, and in order
    assert len(inputs) == 1 or (targets[:-1] != tokens[-1]).all()  # no row more than is needed


def test_bytes(tmp_path):
    path = str(
        written(tmp_path, a="abcdefgh äöü ABCDEFG") / "a.txt"
    )  # 23 bytes, of which round(6.9) are held out
    splits = text(path, context_length=8, val_fraction=0.3, stride=8)
    inputs, targets = splits["train"]
    assert (inputs.shape, inputs.dtype, targets.dtype) == ((2, 8), np.int64, np.int64)
    assert bytes(inputs.ravel().tolist())[:15].decode() == "abcdefgh äöü"
    assert [bytes(row.tolist()) for row in splits["val"][0]] == [b"ABCDEF\0\0"]
    assert bytes(splits["val"][1][0, :6].tolist()) == b"BCDEFG"
    assert splits["val"][1][0, 6:].tolist() == [-100, -100]
    assert splits["out_features"] == 256
    assert "preprocessing" not in splits


def test_training_rows_overlap_by_half_unless_told_otherwise(tmp_path):
    path = str(written(tmp_path, a=bytes(range(100))) / "a.txt")
    assert text(path, context_length=8)["train"][0][:3, 0].tolist() == [0, 4, 8]
    assert text(path, context_length=8, stride=3)["train"][0][:3, 0].tolist() == [0, 3, 6]
    assert text(path, context_length=1)["train"][0][:3, 0].tolist() == [0, 1, 2]
    assert text(path, context_length=8)["val"][0][:, 0].tolist() == [90, 98]


@pytest.mark.parametrize("level", ["byte", "char"])
@pytest.mark.parametrize("stride", [1, 5, 16])
def test_no_training_row_reaches_into_the_held_out_part(tmp_path, level, stride):
    path = str(written(tmp_path, a=bytes(range(100))) / "a.txt")
    splits = text(path, level, context_length=16, val_fraction=0.25, stride=stride)
    inputs, targets = splits["train"]
    assert (inputs.max(), targets.max()) == (73, 74)
    if level == "byte":
        assert (splits["val"][0].max(), splits["val"][1].max()) == (98, 99)


def test_characters(tmp_path):
    path = str(written(tmp_path, a="bäb b cäx!") / "a.txt")
    splits = text(path, "char", context_length=4, val_fraction=0.3)
    assert splits["preprocessing"] == {"vocabulary": [" ", "b", "c", "ä", "\ufffd"]}
    assert splits["out_features"] == 5
    assert splits["train"][0][0].tolist() == [1, 3, 1, 0]
    assert splits["val"][0].tolist() == [[3, 4, 0, 0]]  # "äx!": x and ! are not in the training part
    assert splits["val"][1].tolist() == [[4, 4, -100, -100]]


def test_the_replacement_character_of_a_text_is_the_unknown_token(tmp_path):
    path = str(written(tmp_path, a="a\ufffd\U0001f600b" * 5) / "a.txt")
    vocabulary = text(path, "char", context_length=4)["preprocessing"]["vocabulary"]
    assert vocabulary == ["a", "b", "\U0001f600", "\ufffd"]
    assert encode("ab\ufffdz", vocabulary).tolist() == [0, 1, 3, 3]


def test_files_are_joined_by_name_or_in_the_list_s_order(tmp_path):
    folder = written(tmp_path, b="two ", a="one ", c="three ")
    (folder / "d.txt").mkdir()
    assert read(f"{folder}/*.txt") == b"one two three "
    assert read([f"{folder}/c.txt", f"{folder}/[ab].txt"]) == b"three one two "
    written(tmp_path, **{"[ab]": "brackets"})
    assert read(f"{folder}/[ab].txt") == b"brackets"


def test_without_a_path_it_is_this_project_s_documentation():
    content = read()
    names = [*sorted(reader.PROJECT.glob("*.md")), *sorted(reader.PROJECT.glob("docs/*.md"))]
    assert [path.name for path in names][:4] == [
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
    ]
    assert content == b"".join(path.read_bytes() for path in names)
    inputs, _ = text()["val"]
    assert bytes(inputs[0].tolist()) == divide(content, 0.1)[1][:128]


def test_an_installed_package_has_no_documentation(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "PROJECT", tmp_path)
    with pytest.raises(ValueError, match=r"^path=null: an installed package has no documentation"):
        text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "word"}, "level=word must be byte or char"),
        ({"stride": 0}, "stride=0 must be between 1 and context_length=128"),
        ({"stride": 129}, "stride=129 must be between 1 and context_length=128"),
        ({"context_length": 0}, "context_length=0 must be at least 1"),
        ({"val_fraction": 0}, "val_fraction=0: must be between 0 and 1"),
        ({"val_fraction": 1.0}, "val_fraction=1.0: must be between 0 and 1"),
        (
            {"val_fraction": 0.1},
            "val_fraction=0.1 of a text of length 12 is 1: both parts need two tokens",
        ),
        ({"level": "char"}, "the text is not UTF-8 at byte 4: type dataset.level=byte"),
    ],
)
def test_arguments_that_cannot_be(tmp_path, arguments, message):
    path = str(written(tmp_path, a=b"good\xff bad...") / "a.txt")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        text(path, **{"val_fraction": 0.5, **arguments})


def test_paths_without_a_file(tmp_path):
    for path, what in ((tmp_path / "*.md", "matches no file"), (tmp_path, "is a folder")):
        message = f"path={path}: {what}; a file or a glob such as 'texts/*.txt' is needed"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            read(str(path))
