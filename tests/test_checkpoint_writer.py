"""The writer's thread: order, back-pressure, errors, and that the training does not pay for it."""

import os
import sys
import threading
import time
import weakref

import pytest
import torch

from runner import checkpoint
from runner.checkpoint import CheckpointError
from runner.checkpoint_writer import NICENESS, Writer
from runner.errors import RunnerError
from runner.snapshot import Snapshot


def snapshot(step, value=None):
    return Snapshot(
        f"step-{step:08d}", {"w": torch.full((3,), float(step))}, {"step": step}, {"value": value}, {}
    )


def writer(root, committed=lambda path, snapshot: None, keep=9, keep_best=0):
    return Writer(root, keep, keep_best, True, committed)


def steps(root):
    return [int(path.name.removeprefix("step-")) for path in checkpoint.committed(root)]


def test_everything_that_was_put_is_written_in_order(tmp_path):
    seen = []
    writing = writer(tmp_path, lambda path, snapshot: seen.append((path, snapshot.state["step"])))
    for step in (1, 2, 3, 4):
        writing.put(snapshot(step))
    writing.close()
    assert seen == [(tmp_path / f"step-{step:08d}", step) for step in (1, 2, 3, 4)]
    for step, path in enumerate(checkpoint.committed(tmp_path), start=1):
        assert checkpoint.load(path)[1]["weights"]["w"].tolist() == [step] * 3


def test_the_last_and_the_best_stay(tmp_path):
    with_best = writer(tmp_path, keep=2, keep_best=1)
    for step, value in enumerate([0.1, 0.9, 0.2, None, 0.3], start=1):
        with_best.put(snapshot(step, value))
    with_best.close()
    assert steps(tmp_path) == [2, 4, 5]


def test_a_step_that_is_taken_again_replaces_what_came_after_it(tmp_path):
    first = writer(tmp_path, keep=2)
    for step in (1, 2, 3, 4):
        first.put(snapshot(step))
    first.close()
    assert steps(tmp_path) == [3, 4]
    again = writer(tmp_path, keep=2)
    again.put(snapshot(3))
    again.close()
    assert steps(tmp_path) == [3]


def test_put_does_not_wait_for_the_disk_but_for_the_one_before(tmp_path):
    begun, release = threading.Event(), threading.Event()

    def hold(path, snapshot):
        begun.set()
        assert release.wait(30)

    writing = writer(tmp_path, hold)
    writing.put(snapshot(1))  # returns, or this test never ends
    assert begun.wait(30)
    second = threading.Thread(target=writing.put, args=[snapshot(2)])
    second.start()
    second.join(0.2)
    assert second.is_alive()
    release.set()
    second.join(30)
    assert not second.is_alive()
    writing.close()
    assert steps(tmp_path) == [1, 2]


def test_a_written_snapshot_is_let_go_before_the_next_one_comes(tmp_path):
    first = snapshot(1)
    gone = weakref.ref(first)
    writing = writer(tmp_path)
    writing.put(first)
    del first
    deadline = time.monotonic() + 30
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert gone() is None
    writing.close()
    assert steps(tmp_path) == [1]


@pytest.mark.parametrize("caller", ["put", "close"])
def test_an_error_of_the_disk_is_raised_in_the_training_s_thread_and_once(tmp_path, caller):
    root = tmp_path / "a file"
    root.write_text("")
    writing = writer(root)
    writing.put(snapshot(1))
    with pytest.raises(
        CheckpointError, match=r"^.*a file/step-00000001: File exists: the checkpoint needs \d+ bytes"
    ):
        writing.close() if caller == "close" else writing.put(snapshot(2))
    root.unlink()
    writing.put(snapshot(3))
    writing.close()
    assert steps(root) == [3]


@pytest.mark.parametrize("kind", [RunnerError, ValueError, SystemExit])
def test_an_error_of_the_upload_is_raised_too_and_the_checkpoint_is_there(tmp_path, kind):
    def fail(path, snapshot):
        raise kind("the store is gone")

    writing = writer(tmp_path, fail)
    writing.put(snapshot(1))
    with pytest.raises(kind, match=r"^the store is gone$"):
        writing.put(snapshot(2))
    writing.close()
    assert steps(tmp_path) == [1]


def test_without_a_snapshot_there_is_no_thread_and_nothing_to_close(tmp_path):
    before = threading.active_count()
    writing = writer(tmp_path / "none")
    assert threading.active_count() == before
    writing.close()
    writing.close()
    assert not (tmp_path / "none").exists()


def test_closing_ends_the_thread(tmp_path):
    writing, names = writer(tmp_path), []
    writing.put(snapshot(1))
    names = [thread.name for thread in threading.enumerate()]
    assert "checkpoint writer" in names
    writing.close()
    assert "checkpoint writer" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux only")
def test_the_training_goes_first(tmp_path):
    found = []

    def look(path, snapshot):
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    writing, own = writer(tmp_path, look), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    writing.put(snapshot(1))
    writing.close()
    assert found == [min(19, own + NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
