"""Ctrl-C and SIGTERM in a process of its own: none is lost, and a run that is being ended is left alone."""

import signal
import subprocess
import sys

import pytest

SWALLOWED = """
import time
from runner import interrupts
interrupts.install()
class Careless:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(30)
careless = Careless()
try:
    del careless
    print("went on", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    interrupts.ending()
    print("ended", interrupts.is_termination(), flush=True)
    time.sleep(interrupts.AGAIN_SECONDS + 1)
    print("in peace", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_that_is_swallowed_comes_again(number):
    process = subprocess.Popen(
        [sys.executable, "-c", SWALLOWED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "went on\n"
    assert process.stdout.readline() == f"ended {number == signal.SIGTERM}\n"
    process.send_signal(number)  # the user presses it once more, while the run is being ended
    said, errors = process.communicate(timeout=30)
    assert (said, process.returncode) == ("in peace\n", 0)
    assert errors.startswith("Exception ignored in: <function Careless.__del__")
