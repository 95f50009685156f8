"""Which processes the warden would end: those that Ray has left behind, and nobody else's."""

import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from runner.executors.warden import orphans
from tests.faults.processes import is_alive

AGENT = "/x/dashboard/agent.py"


@pytest.fixture
def programs(tmp_path):
    """Shells under the names of Ray's programs, which wait for their standard input to end."""
    started = []

    def start(name, script, *arguments):
        program = tmp_path / name
        if not program.exists():
            shutil.copy("/bin/sh", program)
        process = subprocess.Popen(
            [program, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_raylet_and_its_children_are_left_alone_until_it_is_dead(programs):
    session = os.getsid(0)
    before = set(orphans(session))
    # Its own command line names what it is to start.
    raylet = programs(
        "raylet",
        f"sh -c 'echo $$; exec > /dev/null; sleep 20; true' {AGENT} & wait",
        "raylet",
        f"--agent={AGENT}",
    )
    agent = int(raylet.stdout.readline())
    while [child.name() for child in psutil.Process(agent).children()] != ["sleep"]:
        time.sleep(0.01)  # until then it has a child that looks like another agent
    assert set(orphans(session)) == before
    raylet.kill()
    raylet.wait()
    assert set(orphans(session)) - before == {agent}
    assert orphans(session + 1_000_000) == []  # another session's
    os.kill(agent, 9)


def test_the_warden_ends_what_a_killed_driver_has_orphaned(tmp_path):
    program = (
        "import os, subprocess, sys, time\n"
        "from runner.executors.warden import end_with_driver\n"
        "end_with_driver()\n"
        f"agent = subprocess.Popen(['sh', '-c', 'sleep 20; true', '{AGENT}'], stdout=subprocess.DEVNULL)\n"
        "print(agent.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    agent = int(driver.stdout.readline())
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 5
    while is_alive(agent) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(agent)
