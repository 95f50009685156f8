"""A rank's own output: everything that reaches file descriptors 1 and 2, and the driver's view of it."""

import os
import subprocess
import sys
import threading
import time

import pytest

from runner import secrets
from runner.rank_log import Follower, aside, captured, log_path, mask_logs


def test_the_log_of_a_rank_lies_in_its_run_s_folder(tmp_path):
    assert log_path(tmp_path, 3) == tmp_path / "logs" / "rank-3.log"


def test_everything_printed_is_captured_in_order(tmp_path):
    path = log_path(tmp_path, 0)
    with captured(path):
        print("from python")
        os.write(1, b"from descriptor 1\n")
        print("an error", file=sys.stderr)
        os.write(2, b"from descriptor 2\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    assert path.read_text() == ("from python\nfrom descriptor 1\nan error\nfrom descriptor 2\nfrom a child\n")


def test_a_line_is_in_the_file_as_soon_as_it_is_printed(tmp_path):
    with captured(tmp_path / "log"):
        print("at once")
        seen = (tmp_path / "log").read_text()
    assert seen == "at once\n"


def test_what_is_printed_without_a_newline_arrives_at_the_end(tmp_path):
    with captured(tmp_path / "log"):
        print("no newline", end="")
    assert (tmp_path / "log").read_text() == "no newline"


def test_characters_that_cannot_be_encoded_do_not_end_the_training(tmp_path):
    with captured(tmp_path / "log"):
        print("broken \udcff name")
    assert (tmp_path / "log").read_text() == "broken \\udcff name\n"


def test_output_goes_back_where_it_went_before(tmp_path, capfd):
    before = sys.stdout, sys.stderr
    with captured(tmp_path / "log"):
        print("inside")
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before
    os.write(1, b"outside\n")
    os.write(2, b"outside too\n")
    assert capfd.readouterr() == ("outside\n", "outside too\n")
    assert (tmp_path / "log").read_text() == "inside\n"


def test_output_goes_back_after_an_exception_and_no_descriptor_is_lost(tmp_path, capfd):
    def fail():
        with captured(tmp_path / "log"):
            raise ValueError("inside")

    open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (a count)
    with pytest.raises(ValueError, match="inside"):
        fail()
    assert len(os.listdir("/proc/self/fd")) == open_before  # noqa: PTH208
    os.write(1, b"outside\n")
    assert capfd.readouterr().out == "outside\n"


def test_a_second_capture_appends(tmp_path):
    for text in ("first", "second"):
        with captured(tmp_path / "log"):
            print(text)
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


class Shown(list):
    """Lines shown so far; `until` waits for a number of them."""

    def until(self, count):
        deadline = time.monotonic() + 5
        while len(self) < count and time.monotonic() < deadline:
            time.sleep(0.002)
        return list(self)


@pytest.fixture
def follow(tmp_path):
    shown = Shown()
    return tmp_path / "log", shown, Follower(tmp_path / "log", shown.append, seconds=0.005)


def test_a_follower_waits_for_the_file_and_shows_its_lines_while_it_grows(follow):
    path, shown, follower = follow
    with path.open("a", buffering=1) as file:
        file.write("one\ntwo\n")
        assert shown.until(2) == ["one", "two"]
        file.write("three\n")
        assert shown.until(3) == ["one", "two", "three"]
    follower.close()
    assert shown == ["one", "two", "three"]


def test_a_follower_shows_half_a_line_only_when_it_is_whole_or_at_the_end(follow):
    path, shown, follower = follow
    with path.open("ab", buffering=0) as file:
        file.write("first\nhalf ü".encode()[:-1])  # cut within a character
        assert shown.until(1) == ["first"]
        file.write("ü".encode()[1:] + b" line\nlast")
        assert shown.until(2) == ["first", "half ü line"]
    follower.close()
    assert shown == ["first", "half ü line", "last"]


def test_closing_a_follower_shows_what_was_written_just_before(tmp_path):
    shown = []
    follower = Follower(tmp_path / "log", shown.append, seconds=0.05)
    (tmp_path / "log").write_text("a\n\nb\n")
    follower.close()
    assert shown == ["a", "", "b"]
    assert "rank-0 log" not in [thread.name for thread in threading.enumerate()]


def test_closing_a_follower_of_a_file_that_never_came_shows_nothing(follow):
    _, shown, follower = follow
    follower.close()
    assert shown == []


def test_what_is_said_aside_is_in_the_log_alone(tmp_path):
    path, shown = tmp_path / "rank-0.log", []
    follower = Follower(path, shown.append, seconds=0.01)
    with captured(path):
        print("before")
        with aside():
            print("within")
        print("after")
    follower.close()
    assert shown == ["before", "after"]
    assert "within" in path.read_text()


def test_secrets_that_went_past_python_are_taken_out_of_the_logs(tmp_path, monkeypatch):
    for name, empty in (("_known", set()), ("_uris", {}), ("_pattern", None)):
        monkeypatch.setattr(secrets, name, empty)
    secrets.learn({"password": "canary-42"})
    path = log_path(tmp_path, 1)
    with captured(path):
        os.write(1, b"raw canary-42 \xff\n")
    assert b"canary-42" in path.read_bytes()
    mask_logs(tmp_path)
    assert path.read_bytes() == b"raw <secret> \xff\n"
