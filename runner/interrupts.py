"""Ctrl-C and SIGTERM: KeyboardInterrupt in the main thread, and again until the run is being ended.

Once is not enough: raised where Python can only print it (a destructor, a callback from C) or within somebody's `except:`,
it is lost, and the training would go on.
"""

from __future__ import annotations

import signal
import time
from typing import Any

AGAIN_SECONDS = 2.0  # until it is raised again
ENDING_SECONDS = 5.0  # in which a run that is being ended is left alone, to get its status
_terminated = False  # Ray re-raises SIGTERM without its message, so it is kept here
_ending_since = -ENDING_SECONDS


def install() -> None:
    """Take both signals from here on; and SIGALRM, the timer's (a thread could not be started in a signal's handler)."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _interrupt)


def is_installed() -> bool:
    """Whether this process is a command's, which ends a run on a signal; a rank that a launcher can kill is not."""
    return signal.getsignal(signal.SIGALRM) is _interrupt


def ending() -> None:
    """Call it where an interruption has arrived: the run is being ended now."""
    global _ending_since
    _ending_since = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0)


def is_termination() -> bool:
    """Whether it was SIGTERM."""
    return _terminated


def _interrupt(number: int, frame: Any) -> None:
    global _terminated
    if time.monotonic() - _ending_since < ENDING_SECONDS:
        return
    _terminated |= number == signal.SIGTERM
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
    raise KeyboardInterrupt
