"""A run's folder: written whole or not at all, locked by processes that really live and really die."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from runner import run_folder
from runner.errors import ConfigError
from runner.run_folder import (
    DRIVER_LOCK,
    RANK_0_LOCK,
    RunFile,
    is_free,
    locked,
    lost,
    read_result,
    take,
    unfinished,
    write_result,
)
from tests.composed import CONF

RUN = RunFile(
    run_id="abc",
    tracking_uri="sqlite:////tmp/κ.db",
    fingerprint="f" * 64,
    config="seed: 0\npath: ${oc.env:HOME}\n",
    overrides=["model=mlp", "optimizer.lr=0.1"],
    working_dir="/home/x",
    import_roots=["/home/x", "/home/y"],
    created="2026-11-20T10:00:00.000000+00:00",
)

# Holds a lock, has a forked child and a program of its own that outlive it, and says so.
HOLDER = """
import os, subprocess, sys, time
from pathlib import Path
from runner.run_folder import locked

with locked(Path(sys.argv[1]), sys.argv[2]):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    program = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child, program.pid, flush=True)
    sys.stdin.readline()
"""


class Holder:
    """A process that holds a lock until it is told to let go, or is killed."""

    def __init__(self, run_dir, name):
        command = [sys.executable, "-c", HOLDER, str(run_dir), name]
        self.process = subprocess.Popen(
            command, cwd=CONF.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children = [int(pid) for pid in self.process.stdout.readline().split()]
        self.pid = self.process.pid

    def let_go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()
        for pid in self.children:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hold():
    holders = []

    def start(run_dir, name=DRIVER_LOCK):
        holders.append(Holder(run_dir, name))
        return holders[-1]

    yield start
    for holder in holders:
        holder.end()


def run_in(run_dir, result=None, **changes):
    RunFile(**{**vars(RUN), **changes}).write(run_dir)
    if result:
        write_result(run_dir, {"status": result})
    return run_dir


def test_run_json_is_read_back_as_it_was_written(tmp_path):
    RUN.write(tmp_path / "new" / "folder")
    assert RunFile.read(tmp_path / "new" / "folder") == RUN
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["run.json"]


@pytest.mark.parametrize("length", [0, 1, 100, -3])
def test_a_torn_run_json_is_named(tmp_path, length):
    RUN.write(tmp_path)
    content = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_bytes(content[:length])
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/run.json: not a whole run.json \(") as refused:
        RunFile.read(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", ["[]", "{}", '{"run_id": "abc"}', "null", "[" * 100_000])
def test_a_run_json_of_something_else_is_named(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match=r"not a whole run\.json"):
        RunFile.read(tmp_path)


def test_a_folder_without_a_run_json_is_no_run_s(tmp_path):
    with pytest.raises(ConfigError, match=r"not the folder of a run: it has no run\.json$"):
        RunFile.read(tmp_path)


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    write_result(tmp_path, {"status": "FAILED"})
    with pytest.raises(TypeError):
        write_result(tmp_path, {"status": "FINISHED", "not json": object()})
    assert read_result(tmp_path) == {"status": "FAILED"}
    write_result(tmp_path, {"status": "FINISHED"})  # over the half-written one
    assert read_result(tmp_path) == {"status": "FINISHED"}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("content", [None, "", '{"status": "FIN', "[1]", "[" * 100_000])
def test_a_result_that_is_missing_or_unreadable_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    assert read_result(tmp_path) is None


def test_a_lock_is_free_before_during_and_after(tmp_path):
    assert is_free(tmp_path)
    assert list(tmp_path.iterdir()) == []  # asking leaves no trace
    with locked(tmp_path):
        assert not is_free(tmp_path)
        assert not is_free(tmp_path)  # asking does not free it
    assert is_free(tmp_path)
    with locked(tmp_path, RANK_0_LOCK):
        assert not is_free(tmp_path)


@pytest.mark.parametrize("name", [DRIVER_LOCK, RANK_0_LOCK])
def test_a_live_process_s_run_is_not_taken_and_it_is_named(tmp_path, hold, name):
    holder = hold(tmp_path, name)
    assert not is_free(tmp_path)
    with pytest.raises(ConfigError) as refused, take(tmp_path, seconds=0.2):
        pytest.fail("taken")
    host = os.uname().nodename
    assert str(refused.value).startswith(
        f"run {tmp_path} is still being trained by process {holder.pid} on {host}; "
    )


@pytest.mark.parametrize("name", [DRIVER_LOCK, RANK_0_LOCK])
def test_a_killed_process_s_run_is_free_though_its_children_live(tmp_path, hold, name):
    holder = hold(tmp_path, name)
    holder.kill()
    for pid in holder.children:
        os.kill(pid, 0)  # alive
    with take(tmp_path, seconds=5.0):  # well before the children end; the fork lets go within milliseconds
        assert not is_free(tmp_path)


def test_a_forked_child_that_leaves_the_block_does_not_free_its_parent_s_lock(tmp_path):
    with locked(tmp_path):
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert not is_free(tmp_path)
    if not child:
        os._exit(0)


def test_a_run_is_waited_for_until_its_old_rank_0_is_gone(tmp_path, hold):
    holder = hold(tmp_path, RANK_0_LOCK)
    holder.let_go()
    with take(tmp_path):
        with locked(tmp_path, RANK_0_LOCK, seconds=0):  # the new rank 0 can have it
            pass
        with pytest.raises(ConfigError), take(tmp_path, seconds=0):
            pytest.fail("taken twice")


def test_unfinished_runs_are_those_of_this_config_that_nobody_trains_newest_first(tmp_path, hold):
    day = tmp_path / "runs" / "2026-11-20"
    older = run_in(day / "zz", created="2026-11-20T09:00:00.000000+00:00")
    newer = run_in(day / "aa", result="KILLED", created="2026-11-20T11:00:00.000000+00:00")
    failed = run_in(tmp_path / "runs" / "2026-11-19" / "x", result="FAILED")
    run_in(day / "finished", result="FINISHED")
    run_in(day / "another", fingerprint="e" * 64)
    run_in(day / "another that mentions it", fingerprint="e" * 64, overrides=[RUN.fingerprint])
    hold(run_in(day / "trained"))
    (day / "empty").mkdir()
    (run_in(day / "torn") / "run.json").write_text(json.dumps(RUN.fingerprint))
    (day / "file").write_text("")
    assert unfinished(tmp_path, RUN.fingerprint) == [newer, failed, older]
    assert unfinished(tmp_path, "d" * 64) == []
    assert unfinished(tmp_path / "nowhere", RUN.fingerprint) == []


def test_lost_runs_are_those_without_a_result_that_nobody_trains(tmp_path, hold):
    day, job = tmp_path / "runs" / "2026-11-20", tmp_path / "multiruns" / "2026-11-20" / "10-00" / "0"
    expected = {run_in(day / "lost"), run_in(job)}
    run_in(day / "failed", result="FAILED")
    hold(run_in(day / "trained"))
    hold(run_in(day / "rank 0 lives on"), RANK_0_LOCK)
    (day / "never launched").mkdir()
    assert set(lost(tmp_path)) == expected
    assert lost(tmp_path / "nowhere") == []


def test_of_hundreds_of_runs_one_is_parsed(tmp_path, monkeypatch):
    for number in range(300):
        run_in(tmp_path / "runs" / "day" / str(number), fingerprint=f"{number:064}", result="FINISHED")
    parsed = []
    monkeypatch.setattr(run_folder.json, "loads", lambda text: parsed.append(text) or {})
    before = time.process_time()
    assert lost(tmp_path) == []
    assert parsed == []
    unfinished(tmp_path, f"{7:064}")
    assert len(parsed) == 1
    print(f"{time.process_time() - before:.3f} s of CPU for 300 folders")
