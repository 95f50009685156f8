"""The errors a user sees: exit codes, one form, and that they survive a trip between processes."""

import pickle

import pytest

from runner.checkpoint import CheckpointError
from runner.errors import (
    ConfigError,
    LaunchError,
    PreflightError,
    RunnerError,
    TrainingError,
    nearest,
    refuse,
)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RunnerError, 1),
        (TrainingError, 1),
        (LaunchError, 1),
        (CheckpointError, 1),
        (ConfigError, 2),
        (PreflightError, 2),
    ],
)
def test_each_kind_has_its_exit_code_and_survives_pickling(kind, code):
    copy = pickle.loads(pickle.dumps(kind("what to type")))
    assert (type(copy), str(copy), copy.exit_code) == (kind, "what to type", code)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("two\n  lines\r\nand \u2028 a third", "two lines and a third"),
        ("\x1b[31mred\x07 \u202e \udcff", "\\x1b[31mred\\x07 \\u202e \\udcff"),
        ("a  b é 日本 𝕏 ·", "a  b é 日本 𝕏 ·"),
        ("", ""),
    ],
)
def test_a_message_is_one_line_that_a_terminal_shows_as_it_is(message, line):
    assert str(ConfigError(message)) == line


def test_what_others_add_to_a_message_on_its_way_stays_apart():
    """As Ray Data does, whose lines are taken off by who receives the error."""
    error = TrainingError("row 7")
    error.args = ("row 7\nFailed after 1 attempt",)
    assert str(pickle.loads(pickle.dumps(error))) == "row 7\nFailed after 1 attempt"


def test_a_refusal_names_key_value_what_is_allowed_and_what_to_type():
    assert str(refuse("a.b", 0, "must be 1 or more", "a.b=1")) == "a.b=0: must be 1 or more; type a.b=1"
    assert str(refuse("a.b", 0, "must be 1 or more")) == "a.b=0: must be 1 or more"


@pytest.mark.parametrize(
    ("name", "found"),
    [("epohs", "epochs"), ("EPOCHS", None), ("", None), ("batch", "batch_size"), ("xyz", None)],
)
def test_the_nearest_name_or_none(name, found):
    assert nearest(name, ["epochs", "batch_size", "lr"]) == found
