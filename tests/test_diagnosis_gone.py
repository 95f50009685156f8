"""Ranks that are gone without a word: which one it was, and what is known of its end."""

import json
import subprocess
import sys
import time

import pytest

from runner.diagnosis import diagnose
from runner.errors import LaunchError
from runner.rank_log import log_path
from runner.watchdog import open_watchdog
from tests.test_diagnosis import GONE, begun, fails, is_told, line_of

RAY = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
	class_name: RayTrainWorker
	pid: {pid}
	ip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR {detail}"""
KILLED = "Worker unexpectedly exits. Common causes include: (1) the process was killed by the OOM killer"
DIED = "ended without a Python error (killed, out of memory or os._exit) or stopped answering"


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    return begun(tmp_path, monkeypatch)


def test_the_rank_without_a_record_is_the_one_that_died(run_dir):
    fails(run_dir, 0, GONE)
    is_told(
        run_dir,
        f"rank 1 {DIED} (log in run/logs/rank-1.log; verbose=true shows Ray's account)",
        is_final=False,
        rank=1,
    )


def test_without_ray_there_is_no_account_of_it(run_dir):
    fails(run_dir, 0, GONE)
    assert str(diagnose(run_dir, 2, 0.0, None).error) == f"rank 1 {DIED} (log in run/logs/rank-1.log)"


def test_when_ray_ended_the_others_first_the_process_that_it_names_is_the_one(run_dir):
    assert line_of(run_dir) == (f"ranks 0 and 1 {DIED} (log in run/logs; verbose=true shows Ray's account)")
    for rank, pid in ((0, 4711), (1, 4712)):
        open_watchdog(run_dir / "stalls", rank, None, None, str)
        path = run_dir / f"stalls/rank-{rank}.pid"
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": pid}))
    text = RAY.format(pid=4712, detail=KILLED)
    assert line_of(run_dir, launch_error=text).startswith(f"rank 1 {DIED} (")
    # An earlier attempt's process of that number was another one.
    told = line_of(run_dir, since=time.time() + 1, launch_error=text)
    assert told.startswith("the workers did not start")


@pytest.mark.parametrize(
    ("detail", "how"),
    [
        (KILLED, DIED),
        ("Worker exits with an exit code 3.", "ended with exit code 3, without a Python error"),
        (
            "Task was killed due to the node running low on memory.",
            "was killed by Ray: its machine ran low on memory",
        ),
    ],
)
def test_what_ray_knows_more_is_told(run_dir, detail, how):
    fails(run_dir, 0, GONE)
    text = RAY.format(pid=1, detail=detail)
    assert line_of(run_dir, launch_error=text).startswith(f"rank 1 {how} (log in ")


def test_a_crash_is_told_from_python_s_own_account(run_dir):
    fails(run_dir, 0, GONE)
    code = "import faulthandler\nfaulthandler.enable()\ndef native():\n    faulthandler._sigsegv()\nnative()"
    (run_dir / "crash.py").write_text(code)
    with log_path(run_dir, 1).open("a") as log:
        subprocess.run([sys.executable, run_dir / "crash.py"], stderr=log, check=False)
    is_told(
        run_dir,
        "rank 1 crashed: Segmentation fault in run/crash.py:4 native "
        "(log in run/logs/rank-1.log; verbose=true shows Ray's account)",
        is_final=False,
        rank=1,
    )
    assert line_of(run_dir, since=time.time() + 1).startswith("the workers did not start")


def test_when_all_ranks_miss_another_it_is_what_the_first_says(run_dir):
    for rank in (0, 1):
        fails(run_dir, rank, GONE)
    is_told(run_dir, f"rank 0: {GONE}", is_final=False, rank=None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback\n  many lines\nRuntimeError: no actor\n", "RuntimeError: no actor"),
        (None, "no reason given"),
    ],
)
def test_without_a_word_from_rank_0_the_launch_has_failed(tmp_path, text, line):
    found = diagnose(tmp_path / "run", 2, 0.0, text)
    assert isinstance(found.error, LaunchError)
    assert found.is_final
    assert str(found.error) == f"the workers did not start: {line} (verbose=true shows Ray's output)"
