"""A local Ray ends with its driver, also where that is killed: by itself Ray leaves agents and workers for a minute.

Run as a program, this file is the warden: a process that waits on a pipe which only the driver holds open. It imports
nothing but a little of the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LOOK_SECONDS, LAST_SECONDS = 0.3, 4.0
# What Ray calls its processes, and what they are before they have that name. Those of a living Ray are raylet's children.
TITLE, PROGRAMS = (
    b"ray::",
    (b"/dashboard/agent.py", b"/runtime_env/agent/main.py", b"/workers/default_worker.py"),
)
PARENT = b"raylet\n"
_lifeline: int | None = None  # this process's end of the pipe


def end_with_driver() -> None:
    """Start the warden of this process, once."""
    global _lifeline
    if _lifeline is not None:
        return
    waits, _lifeline = os.pipe()
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__, str(os.getsid(0))],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, waits, 0), *quiet],
        setsid=True,  # not of the terminal whose Ctrl-C ends the rest
    )
    os.close(waits)


def orphans(session: int) -> list[int]:
    """Ray's processes in a session of processes (a terminal's, say) whose raylet is dead."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (pathlib takes longer than all the rest)
        try:
            parent, _, its_session = _read(name, "stat").rpartition(b")")[2].split()[1:4]
            line = _read(name, "cmdline")
            is_ray = line.startswith(TITLE) or any(program in line for program in PROGRAMS)
            # A raylet names the programs too, which it is to start; other drivers of this session have theirs.
            comms = _read(name, "comm"), _read(parent.decode(), "comm")
            if int(its_session) == session and is_ray and PARENT not in comms:
                found.append(int(name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def _read(process: str, name: str) -> bytes:
    with open(f"/proc/{process}/{name}", "rb") as file:  # noqa: PTH123
        return file.read()


def main(session: int) -> None:
    """Wait for the driver's end, then for a few seconds end whatever it has orphaned."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    deadline = time.monotonic() + LAST_SECONDS
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        for process in orphans(session):
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                continue


if __name__ == "__main__":
    main(int(sys.argv[1]))
