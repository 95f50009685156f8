"""The connections of a rank to its peers, so that they can be ended at once.

After an error Horovod 0.28.1 stops, and keeps its connections until it connects anew: of three ranks that lose one, the one that waits
for a peer which has already seen the loss would wait for HOROVOD_GLOO_TIMEOUT_SECONDS (measured: 30 s; so 0.3 s).
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


class Connections:
    """What is opened between `before` and `after` Horovod connects."""

    def __init__(self) -> None:
        self._opened: dict[str, int] = {}
        self.before()

    def before(self) -> None:
        self._others = set(_sockets())

    def after(self) -> None:
        self._opened = {name: number for name, number in _sockets().items() if name not in self._others}

    def end(self) -> None:
        """Those to peers; who waits for this rank gets an error."""
        there = _sockets()
        for name, number in self._opened.items():
            if there.get(name) != number:
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # raises for what listens, such as Horovod's service for news of hosts
                    connection.shutdown(socket.SHUT_RDWR)
        self._opened = {}


def _sockets() -> dict[str, int]:
    """File descriptors of this process's sockets by their name, which is another for each."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(path.readlink())
            if name.startswith("socket:"):
                found[name] = int(path.name)
    return found
