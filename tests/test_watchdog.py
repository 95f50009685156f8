"""Ranks that stand still, as real processes: what they leave behind, and that they end in time."""

import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runner import diagnosis, stacks, watchdog

SECONDS = 1.0
STANDING_STILL = ["sleeps", "spins", "keeps_the_lock"]
RANK = '''
import ctypes, os, shutil, sys, time
from pathlib import Path
from runner import interrupts
from runner.watchdog import open_watchdog

class Talk:
    """A communicator's account of itself."""
    waiting, waited = None, 0.0

talk, stalls = Talk(), Path("stalls")
rank, what, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])

def waits():
    talk.waiting = "gradients"
    time.sleep(60)

def sleeps():
    time.sleep(60)

def spins():
    while True:
        pass

def keeps_the_lock():
    lock, acquire = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
    acquire(lock)
    acquire(lock)  # a C call that never returns and that no thread of Python gets past

def drives():
    interrupts.install()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        interrupts.ending()
        print("interrupted")

def beats():
    for _ in range(15):
        time.sleep(seconds / 10)
        dog.beat()

def talks():
    for _ in range(15):
        talk.waiting = "gradients"
        time.sleep(seconds / 10)
        talk.waiting, talk.waited = None, talk.waited + seconds / 10

def hesitates():
    while not (stalls / "rank-0.json").exists():
        time.sleep(0.01)
    dog.beat()
    time.sleep(seconds / 2)

def loses_its_disk():
    shutil.rmtree(stalls)
    time.sleep(60)

dog = open_watchdog(stalls, rank, seconds, talk, lambda: "step 37 of 900, epoch 3")
print("ready", flush=True)
sys.stdin.readline()
globals()[what]()
dog.close()
'''


class Ranks:
    """Processes that share a folder and begin together."""

    def __init__(self, folder, *deeds, seconds=SECONDS):
        (folder / "stuck.py").write_text(RANK)
        environment = {**os.environ, "PYTHONPATH": str(Path(watchdog.__file__).parents[1])}
        self.began = time.time()
        self.processes = [
            subprocess.Popen(
                [sys.executable, "stuck.py", str(rank), deed, str(seconds)],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, deed in enumerate(deeds)
        ]
        for process in self.processes:
            assert process.stdout.readline() == "ready\n"
        self.started = time.monotonic()
        for process in self.processes:
            process.stdin.write("\n")
            process.stdin.flush()

    def end(self, rank):
        """(exit code, standard error, seconds since the start) of a rank."""
        _, errors = self.processes[rank].communicate(timeout=30)
        return self.processes[rank].returncode, errors, time.monotonic() - self.started


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    started = []
    monkeypatch.chdir(tmp_path)  # as the driver of a run in this folder

    def start(*deeds, **options):
        started.append(Ranks(tmp_path, *deeds, **options))
        return started[-1]

    yield start
    for process in [process for group in started for process in group.processes]:
        process.kill()
        process.communicate()


def line_of(code):
    """The number of a line of RANK."""
    return next(number for number, line in enumerate(RANK.splitlines(), 1) if code in line)


@pytest.mark.parametrize("deed", ["sleeps", "spins"])
def test_a_rank_that_stands_still_says_where_and_is_ended_with_those_that_wait(ranks, tmp_path, deed):
    group = ranks("waits", deed)
    for rank in (1, 0):
        code, errors, seconds = group.end(rank)
        assert (code, SECONDS < seconds < SECONDS + 5) == (watchdog.EXIT_CODE, True)
        assert "s at step 37 of 900, epoch 3\nThread 0x" in errors
        assert ("in waits", f"in {deed}")[rank] in errors
    waiting, stuck = (json.loads((tmp_path / f"stalls/rank-{rank}.json").read_text()) for rank in (0, 1))
    assert (waiting["waiting"], stuck["waiting"]) == ("gradients", None)
    assert stuck["pid"] == group.processes[1].pid
    assert stuck["position"] == "step 37 of 900, epoch 3"
    assert SECONDS < stuck["idle_seconds"] < SECONDS + 1
    assert stuck["stack"].startswith("Thread 0x")
    found = diagnosis.diagnose(tmp_path, 2, group.began, "")
    line = stuck["line"].partition(" ")[0]
    assert line in (f"stuck.py:{line_of(f'def {deed}') + step}" for step in (1, 2))
    assert str(found.error) == (
        f"rank 1 made no progress for 1 s at step 37 of 900, epoch 3 (in {line} {deed}); rank 0 waited for it; "
        "stacks of all ranks: logs/stacks.txt"
    )
    assert (found.is_final, found.rank) == (False, 1)


def test_a_rank_whose_watchdog_cannot_run_is_told_of_by_the_others(ranks, tmp_path):
    group = ranks("waits", "keeps_the_lock", "waits")
    for rank in (0, 2):
        code, _, seconds = group.end(rank)
        assert (code, seconds < SECONDS + 5) == (watchdog.EXIT_CODE, True)
    assert group.processes[1].poll() is None  # nothing but SIGKILL ends it
    assert not (tmp_path / "stalls/rank-1.json").exists()
    found = diagnosis.diagnose(tmp_path, 3, group.began, "")
    line = line_of("# a C call that never returns")
    assert str(found.error) == (
        "rank 1 made no progress for 1 s at step 37 of 900, epoch 3 "
        f"(in stuck.py:{line} keeps_the_lock); ranks 0 and 2 waited for it; stacks of all ranks: logs/stacks.txt"
    )
    stacks = (tmp_path / "logs/stacks.txt").read_text()
    assert [part.split("\n")[0] for part in stacks.split("=== ")[1:]] == ["rank 0", "rank 1", "rank 2"]
    assert stacks.count("in waits") == 2
    assert stacks.count("in keeps_the_lock") == 1


@pytest.mark.parametrize("deed", ["beats", "talks"])
def test_a_rank_that_makes_progress_is_left_alone(ranks, tmp_path, deed):
    code, errors, seconds = ranks(deed).end(0)
    assert (code, errors) == (0, "")
    assert seconds > 1.5 * SECONDS
    assert sorted(path.name for path in (tmp_path / "stalls").iterdir()) == ["rank-0.stack"]


def test_a_rank_that_moves_on_after_all_is_spared(ranks, tmp_path):
    code, errors, _ = ranks("hesitates").end(0)
    assert code == 0
    assert "no progress for 1." in errors
    assert not (tmp_path / "stalls/rank-0.json").exists()


def test_a_rank_that_is_the_driver_too_is_interrupted(ranks, tmp_path):
    group = ranks("drives")
    said, _ = group.processes[0].communicate(timeout=30)
    assert (group.processes[0].returncode, said) == (0, "interrupted\n")
    assert json.loads((tmp_path / "stalls/rank-0.json").read_text())["waiting"] is None


def test_a_rank_that_cannot_write_its_record_is_ended_too(ranks):
    code, _, seconds = ranks("loses_its_disk").end(0)
    assert (code, seconds < SECONDS + 5) == (watchdog.EXIT_CODE, True)


@pytest.mark.parametrize(("is_same", "code"), [(True, -watchdog.STACK_SIGNAL), (False, -signal.SIGTERM)])
def test_no_signal_is_sent_to_a_process_that_has_a_rank_s_number_by_chance(tmp_path, is_same, code):
    sleeper = subprocess.Popen(["sleep", "60"])  # a process without the handler ends by the signal
    try:
        record = {"rank": 1, "host": socket.gethostname(), "pid": sleeper.pid}
        record["started"] = watchdog.started(sleeper.pid) if is_same else "1"
        (tmp_path / "rank-1.pid").write_text(json.dumps(record))
        (tmp_path / "rank-1.stack").touch()
        watchdog.ask_for_stacks(tmp_path, but=0)
        if not is_same:
            time.sleep(0.2)
            sleeper.terminate()
        assert sleeper.wait(10) == code
    finally:
        sleeper.kill()
        sleeper.wait()


class Silent:
    """A communicator that has not been used."""

    waiting, waited = None, 0.0


def test_trainings_in_one_process_leave_neither_thread_nor_handler(tmp_path):
    threads = threading.active_count()
    for _ in range(2):
        dog = watchdog.open_watchdog(tmp_path, 0, 300.0, Silent(), lambda: "")
        assert threading.active_count() == threads + 1
        record = json.loads((tmp_path / "rank-0.pid").read_text())
        assert (record["pid"], record["thread"]) == (os.getpid(), threading.get_ident())
        os.kill(os.getpid(), watchdog.STACK_SIGNAL)
        assert "test_trainings_in_one_process" in (tmp_path / "rank-0.stack").read_text()
        for _ in range(2):  # at the end of the training, and of what it is part of
            dog.close()
        assert not (tmp_path / "rank-0.pid").exists()
        assert threading.active_count() == threads
    assert not faulthandler.unregister(watchdog.STACK_SIGNAL)


def test_without_seconds_nothing_is_watched_and_the_process_is_known(tmp_path):
    threads = threading.active_count()
    dog = watchdog.open_watchdog(tmp_path / "stalls", 3, None, Silent(), lambda: "")
    dog.beat()
    dog.close()
    assert threading.active_count() == threads
    assert [path.name for path in (tmp_path / "stalls").iterdir()] == ["rank-3.pid"]


def test_a_stack_that_two_ranks_asked_for_is_told_once():
    dump = 'Thread 0x01 [a] (most recent call first):\n  File "x.py", line 1 in f\n\nCurrent thread 0x02 [b]:\n  File "y.py", line 2 in g\n'
    assert stacks.first_dump(dump + dump) == dump
    assert stacks.first_dump(dump) == dump
    assert stacks.first_dump("") == ""
