"""`python -m runner` as a process of its own, whose lines are read with the time when they come."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.conftest import environment
from tests.faults.outcome import Outcome
from tests.faults.processes import TOKEN, Alive, with_token

POLL = 0.01  # s
OF_RANK_0 = re.compile(r"^\[0]<std(out|err)>:")  # what horovodrun puts before a line


class Command:
    """Started in `folder`, by `launcher` if there is one; what it trains goes to `run_dir`."""

    def __init__(self, folder: Path, run_dir: Path, *arguments: str, launcher: Sequence[str] = ()) -> None:
        self.folder, self.run_dir = folder, run_dir
        self.lines: list[tuple[float, str]] = []
        self._token = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*launcher, sys.executable, "-m", "runner", *arguments],
            cwd=folder,
            env={**environment(), TOKEN: self._token, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def family(self) -> Alive:
        """All living processes of it, whoever their parent is by now."""
        return with_token(self._token)

    def until(self, holds: Callable[[], bool], seconds: float = 90.0) -> None:
        """Wait for something to happen while it runs."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None, f"it ended before that:\n{self.text}"
            assert time.monotonic() < deadline, f"it did not happen in {seconds} s:\n{self.text}"
            time.sleep(POLL)

    def says(self, beginning: str) -> bool:
        return any(line.startswith(beginning) for _, line in list(self.lines))

    def send(self, number: int) -> float:
        """Signal the driver; time.time() of it."""
        moment = time.time()
        os.kill(self.process.pid, number)
        return moment

    def wait(self, seconds: float = 150.0) -> Outcome:
        """Its outcome, once it has ended."""
        code = self.process.wait(seconds)
        ended = time.time()
        store = f"sqlite:///{self.folder}/outputs/mlflow.db"
        return Outcome(code, self.lines, ended, self.run_dir, store)

    def close(self) -> None:
        """End what is left of it."""
        for pid in self.family():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append((time.time(), OF_RANK_0.sub("", line.rstrip("\n"))))
