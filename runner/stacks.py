"""Where threads are: as text to read, and as the one line that a user knows."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Sequence

from runner.errors import RUNNER

Frame = tuple[str, int, str]  # file, line, function

NOT_THE_USER_S = (str(RUNNER), sysconfig.get_path("stdlib"), "<")  # "<frozen importlib._bootstrap>"


def of_all_threads(first: int) -> str:
    """Where all Python threads are, but the calling one; that with the identifier `first` first."""
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    order = sorted(frames.keys() - {threading.get_ident()}, key=lambda ident: (ident != first, ident))
    return "\n".join(
        f"Thread 0x{ident:016x} {names.get(ident, '')} (most recent call last):\n"
        + "".join(traceback.format_stack(frames[ident]))
        for ident in order
    )


def of_thread(ident: int) -> list[Frame]:
    """A living thread's frames, from the most recent call on; none if it has ended."""
    frame = sys._current_frames().get(ident)
    summaries = traceback.extract_stack(frame) if frame else []
    return [(summary.filename, summary.lineno or 0, summary.name) for summary in reversed(summaries)]


def dumped(text: str, ident: int | None = None) -> list[Frame]:
    """The frames in what faulthandler dumped, from the most recent call on; of the thread `ident`, else of the first."""
    for part in text.split("\n\n"):
        header, *lines = part.strip().splitlines() or [""]
        if ident is None or f"0x{ident:016x}" in header:
            found = (re.fullmatch(r'  File "(.*)", line (\d+) in (.*)', line) for line in lines)
            return [(match[1], int(match[2]), match[3]) for match in found if match]
    return []


def first_dump(text: str) -> str:
    """Of what faulthandler dumped: two ranks that ask at the same time get one after the other."""
    first, newline, _ = text.partition("\n")
    again = text.find(f"\n{first}\n")
    return text if again < 0 or not newline else text[: again + 1]


def place(frames: Sequence[Frame]) -> str | None:
    """The innermost frame of the user's own code, else the innermost of all, as in "models/mlp.py:12 forward"."""
    own = [
        frame
        for frame in frames
        if not frame[0].startswith(NOT_THE_USER_S) and "site-packages" not in frame[0]
    ]
    if not frames:
        return None
    file, line, function = (own or frames)[0]
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{line} {function}"
