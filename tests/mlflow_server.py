"""A real `mlflow server`, which tests kill, stop and start again."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from runner.reach import unanswered
from tests.conftest import environment


class Server:
    """On SQLite, with its artifacts beside it; one worker, so that a signal hits all of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "backend-store-uri": f"sqlite:///{self.folder}/mlflow.db",
            "artifacts-destination": str(self.folder / "artifacts"),
            "workers": "1",
            "host": "127.0.0.1",
            "port": str(self.port),
        }
        command = [sys.executable, "-m", "mlflow", "server"]
        for name, value in options.items():
            command += [f"--{name}", value]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**environment(), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 90
        while unanswered(self.uri, 1.0):
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.1)

    def ensure(self) -> None:
        """As it should be, whatever a test that failed left behind: running."""
        self.send(signal.SIGCONT)
        if self._process is None or self._process.poll() is not None:
            self.start()

    def send(self, number: int) -> None:
        """Signal all its processes."""
        assert self._process
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self._process:
            self._process.wait()

    def rows(self, run_id: str) -> list[tuple[str, int, int, float]]:
        """(key, step, milliseconds, value): the metrics of a run, as they are in the store's table."""
        with closing(sqlite3.connect(self.folder / "mlflow.db", timeout=30)) as store:
            found = store.execute(
                "select key, step, timestamp, value from metrics where run_uuid = ?", [run_id]
            )
            return sorted(found.fetchall())


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    started = Server(folder)
    started.start()
    try:
        yield started
    finally:
        started.kill()


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a thread, or for the server."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.01)
