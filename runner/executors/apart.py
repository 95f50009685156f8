"""A rank of horovodrun in a process below the one that was started, so that it can end by itself.

horovodrun ends a rank by SIGTERM for the children of what it has started, which it then stops, and kills 5 s later. Where /bin/sh is
dash, it has started a shell, whose child is the rank. Where it is bash, which leaves its place to its last command, it has
started the rank itself: that would be stopped at once, and its run would keep the status RUNNING.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def go_on_below() -> None:
    """Return in a child process; this one passes signals on, and ends as the child does, and the child with it."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        if prctl := getattr(ctypes.CDLL(None), "prctl", None):
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before that
            os._exit(1)
        return

    def pass_on(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)  # as a shell says it
