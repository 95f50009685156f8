"""A rank below the process that a launcher has started: signals, exit codes, and no orphan."""

import signal
import subprocess
import sys

import pytest

from tests.faults.processes import gone

RANK = """
import os, signal, sys, time
from runner.executors.apart import go_on_below
go_on_below()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: os._exit(128 + number))
print(os.getpid(), flush=True)
sys.stdin.readline()
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(int(sys.argv[1]))
"""


@pytest.fixture
def start():
    """start(how it ends) → the process, and the pid of the rank."""
    started = []

    def run(end):
        command = [sys.executable, "-c", RANK, end]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1], int(started[-1].stdout.readline())

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("end", "code"), [("0", 0), ("2", 2), ("killed", 137)])
def test_it_ends_as_the_rank_does(start, end, code):
    process, rank = start(end)
    assert rank != process.pid
    process.communicate("\n", timeout=30)
    assert process.returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_rank(start, number):
    process, _ = start("0")
    process.send_signal(number)
    assert process.wait(30) == (143 if number == signal.SIGTERM else 130)


def test_a_rank_does_not_outlive_it(start):
    process, rank = start("0")
    process.kill()
    gone({rank})
    assert process.wait(30) == -signal.SIGKILL
