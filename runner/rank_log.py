"""A rank's own output: everything it prints, from Python or C++, goes to `logs/rank-N.log` in the run's folder."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.secrets import MaskedStream, mask

ASIDE, END = "--- for this log alone:", "---"  # lines around what a Follower does not show


def log_path(run_dir: Path, rank: int) -> Path:
    return run_dir / "logs" / f"rank-{rank}.log"


@contextmanager
def captured(path: Path) -> Iterator[None]:
    """Send file descriptors 1 and 2 (so also prints of C++ libraries and warnings) to `path`, line-buffered."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = (os.dup(1), os.dup(2), sys.stdout, sys.stderr)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout = MaskedStream(open(1, "w", buffering=1, closefd=False, errors="backslashreplace"))  # noqa: SIM115
    sys.stderr = MaskedStream(open(2, "w", buffering=1, closefd=False, errors="backslashreplace"))  # noqa: SIM115
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before[2], before[3]
        for source, target in ((before[0], 1), (before[1], 2)):
            os.dup2(source, target)
            os.close(source)


def mask_logs(run_dir: Path) -> None:
    """Take out the secrets that did not pass Python's streams: of subprocesses, or libraries in C. Nobody writes any more."""
    for path in log_path(run_dir, 0).parent.glob("*.log"):
        text = path.read_text(errors="surrogateescape")
        if (masked := mask(text)) != text:
            path.write_text(masked, errors="surrogateescape")


@contextmanager
def aside() -> Iterator[None]:
    """What is printed within is in the log, and not on the screen."""
    print(ASIDE)
    yield
    print(END)


class Follower:
    """Shows what is added to a log from now on, on the driver and line by line, until it is closed; a missing file is
    waited for."""

    def __init__(self, path: Path, show: Callable[[str], None], seconds: float = 0.2) -> None:
        self._path, self._show, self._seconds = path, show, seconds
        self._offset, self._rest = (
            path.stat().st_size if path.exists() else 0,
            b"",
        )  # of a run that goes on: what is new
        self._is_aside = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="rank-0 log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._read()
        if self._rest:
            self._show(self._rest.decode(errors="replace"))

    def _follow(self) -> None:
        while not self._closing.is_set():
            self._read()
            time.sleep(self._seconds)

    def _read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line.decode(errors="replace"))

    def _take(self, line: str) -> None:
        if line == ASIDE:
            self._is_aside = True
        elif self._is_aside:
            self._is_aside = line != END
        else:
            self._show(line)
