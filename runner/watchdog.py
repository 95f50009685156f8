"""A rank that stands still is ended, after all ranks have told where they are.

Two ranks that wait for each other look the same from outside, and a rank that waits in Horovod burns a whole CPU. So
each rank watches itself: a thread that sees neither a batch nor the end of a collective for `seconds` leaves in
`folder`, for the driver to read (diagnosis.py):

    rank-N.json    what a rank that stood still was doing, and for how long
    rank-N.stack   where all its threads were, dumped from C on the signal of a rank that stands still: also of a rank
                   whose own watchdog cannot run, because a call that never returns keeps Python's lock
    rank-N.pid     who is to be sent the signal

and ends its process. A rank that is not waiting for others is the one that is stuck.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from runner import interrupts, stacks
from runner.json_file import write_json

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
STACK_SIGNAL = signal.SIGRTMIN + 7  # Tune, Slurm and a user's own code have uses for SIGUSR1 and SIGUSR2
POLLS = 20  # in `seconds`
LONGEST_POLL = 0.5  # s
# Between the record and the end. Ranks that wait stay longer: the rank they wait for speaks first.
GRACE = 1.5  # s
GRACE_WAITING = 2.5  # s
DRIVER_SECONDS = (
    3.0  # for the interrupted training of a driver to close; a call that never returns to Python does not
)


class Waits(Protocol):
    """What of a communicator is watched."""

    waiting: str | None
    waited: float


class NullWatchdog:
    """Nothing is watched."""

    def beat(self) -> None:
        pass

    def close(self) -> None:
        pass


class Watchdog:
    """Ends this process with EXIT_CODE when the thread that made it makes no progress for `seconds`.

    Progress is a `beat` or the end of a collective. `position` says in words where the training stands; it is called
    from another thread.
    """

    def __init__(
        self, folder: Path, rank: int, seconds: float, communicator: Waits, position: Callable[[], str]
    ) -> None:
        self._folder, self._rank, self._seconds = folder, rank, seconds
        self._communicator, self._position = communicator, position
        self._watched = threading.get_ident()
        self._beat = time.monotonic()
        self._closing = threading.Event()
        (folder / f"rank-{rank}.json").unlink(missing_ok=True)
        self._stack = (folder / f"rank-{rank}.stack").open("w")
        faulthandler.register(STACK_SIGNAL, file=self._stack, all_threads=True)
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        self._beat = time.monotonic()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        (self._folder / f"rank-{self._rank}.pid").unlink(missing_ok=True)  # no signals from here on
        faulthandler.unregister(STACK_SIGNAL)
        self._stack.close()

    def _watch(self) -> None:
        seen, moved = self._pulse(), self._beat
        while not self._closing.wait(min(self._seconds / POLLS, LONGEST_POLL)):
            pulse, now = self._pulse(), time.monotonic()
            if pulse != seen:
                # A collective began or ended since the last look: a rank that waits is idle from the beginning.
                seen, moved = pulse, now
            idle = now - max(moved, pulse[0])
            if idle > self._seconds and self._is_given_up(idle, pulse):
                self._end()

    def _end(self) -> None:
        """The process. Where that is the driver's too, the training first: there is a run to be recorded."""
        if interrupts.is_installed():
            signal.pthread_kill(self._watched, signal.SIGALRM)
            if self._closing.wait(DRIVER_SECONDS):
                return
        os._exit(EXIT_CODE)  # sys.exit would end this thread alone

    def _pulse(self) -> tuple[float, float, str | None]:
        return self._beat, self._communicator.waited, self._communicator.waiting

    def _is_given_up(self, idle: float, pulse: tuple[float, float, str | None]) -> bool:
        """Leave the record and have the others leave theirs; False if this rank has moved on meanwhile.

        It does so when all ranks were halted for a while (a laptop's lid, a debugger).
        """
        record, waiting = self._folder / f"rank-{self._rank}.json", pulse[2]
        stack = stacks.of_all_threads(self._watched)
        with contextlib.suppress(OSError):  # a full disk must not keep it alive
            os.write(2, f"no progress for {idle:.1f} s at {self._position()}\n{stack}".encode())
            write_json(record, self._record(idle, waiting, stack))
        ask_for_stacks(self._folder, self._rank)
        self._closing.wait(GRACE if waiting is None else GRACE_WAITING)
        if not self._closing.is_set() and self._pulse() == pulse:
            return True
        record.unlink(missing_ok=True)
        return False

    def _record(self, idle: float, waiting: str | None, stack: str) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "time": time.time(),
            "idle_seconds": idle,
            "position": self._position(),
            "waiting": waiting,
            "line": stacks.place(stacks.of_thread(self._watched)),
            "stack": stack,
        }


def open_watchdog(
    folder: Path, rank: int, seconds: float | None, communicator: Waits, position: Callable[[], str]
) -> Watchdog | NullWatchdog:
    """The watchdog of the calling thread; without `seconds` nothing is watched. `folder` is the run's stalls/."""
    folder.mkdir(parents=True, exist_ok=True)
    watchdog = NullWatchdog() if seconds is None else Watchdog(folder, rank, seconds, communicator, position)
    present(folder, rank)  # last: before its handler was there, the signal would end the process
    return watchdog


def present(folder: Path, rank: int) -> None:
    """Say which process and thread `rank` is: whom to ask for a stack, and who it was that died."""
    write_json(
        folder / f"rank-{rank}.pid",
        {
            "rank": rank,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": started(os.getpid()),
            "thread": threading.get_ident(),
            "time": time.time(),
        },
    )


def ask_for_stacks(folder: Path, but: int) -> None:
    """Signal the other ranks of this host that have not left a stack yet."""
    for path in folder.glob("rank-*.pid"):
        with contextlib.suppress(OSError):  # it has just ended
            process, stack = json.loads(path.read_text()), path.with_suffix(".stack").stat()
            pid = process["pid"]
            if process["rank"] == but or process["host"] != socket.gethostname() or pid == os.getpid():
                continue
            # The same process as when it wrote that, not a later one with its number.
            if started(pid) == process["started"] and stack.st_size == 0:
                os.kill(pid, STACK_SIGNAL)


def started(pid: int) -> str | None:
    """When a process started, in ticks since boot, or None if there is none: with the pid it is one process's alone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
