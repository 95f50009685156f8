"""Rank 0 and the other ranks of a launch: a connection each, which ends with the process at its other end."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from runner.diagnosis import error_path
from runner.errors import LaunchError
from runner.executors.launched import Launch
from runner.executors.launcher_store import leave, own_address
from runner.job import Job, Memory
from runner.json_file import write_json

READY, ENDED, GONE = "ready", "ended", "gone"  # what rank 0 knows of another
KEEP_ALIVE_SECONDS = 60


class Others:
    """The other ranks, as rank 0 sees them."""

    def __init__(self, launch: Launch) -> None:
        self._connections: dict[int, Connection] = {}
        self._said: dict[int, str] = {}
        self._records: dict[int, str] = {}  # how they failed, as errors/rank-N.json
        self._has_handed = False
        self._changed = threading.Condition()
        self._count = launch.size - 1
        if self._count:
            key = secrets.token_bytes()
            self._listener = Listener((own_address(), 0), backlog=self._count, authkey=key)
            leave(self._listener.address, key)
            threading.Thread(target=self._accept, daemon=True).start()

    def hand(self, job: Job, memory: Memory) -> None:
        """Give all of them the job, and return when all can begin. Raises LostPeerError where one failed, LaunchError where one is
        not there in time; also for a second job, because Horovod 0.28 crashes when a process connects again."""
        if self._has_handed:
            raise LaunchError("horovodrun trains one job a launch; type executor=horovod_trainer for several")
        self._has_handed = True
        seconds = job.experiment.horovod.timeout_s
        self._wait(lambda: len(self._connections) == self._count, "did not connect", seconds)
        parts = [packed(job), packed(memory)]  # apart: the second may be of modules that the first tells of
        for _, connection in sorted(self._connections.items()):
            for part in parts:
                send(connection, part)
        self._wait(lambda: self.all_said(READY), "was not ready", seconds)
        for connection in self._connections.values():  # Horovod's own connections have a shorter timeout
            send(connection, packed("go"))

    def _wait(self, holds: Callable[[], bool], what: str, seconds: float) -> None:
        self.until(lambda: holds() or self.failed(), seconds)
        if self.failed():
            from runner.communicator import LostPeerError  # imports torch, which a refusal can do without

            raise LostPeerError("another rank failed before the training began")
        if not holds():
            late = min(rank for rank in range(1, self._count + 1) if rank not in self._said)
            raise LaunchError(f"rank {late} {what} within {seconds:g} s (horovod.timeout_s)")

    def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(holds, seconds)

    def all_said(self, *words: str) -> bool:
        return sum(word in words for word in self._said.values()) == self._count

    def failed(self) -> bool:
        return bool(self._records) or GONE in self._said.values()

    def keep_records(self, run_dir: Path) -> None:
        """Of ranks whose disk is another one."""
        for rank, record in self._records.items():
            write_json(error_path(run_dir, rank), json.loads(record))

    def _accept(self) -> None:
        while len(self._connections) < self._count:
            with contextlib.suppress(AuthenticationError, OSError, EOFError):  # somebody else's
                connection = self._listener.accept()
                kept_alive(connection)
                rank = connection.recv()
                threading.Thread(target=self._listen, args=(rank, connection), daemon=True).start()

    def _listen(self, rank: int, connection: Connection) -> None:
        with self._changed:
            self._connections[rank] = connection
            self._changed.notify_all()
        word = ""
        while word != GONE:
            try:
                word, record = connection.recv()
            except (EOFError, OSError):
                word, record = GONE, None
            with self._changed:
                self._said[rank] = word
                if record is not None:
                    self._records[rank] = record
                self._changed.notify_all()


_others: list[Others] = []  # of rank 0's process


def lead(launch: Launch) -> None:
    """On rank 0, before anything else: let the others connect."""
    _others[:] = [Others(launch)]


def the_others() -> Others:
    return _others[0]


def kept_alive(connection: Connection) -> None:
    """Nothing is said for hours: a firewall in between must not forget it, and a host that is gone must be noticed."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_SECONDS)


def receive(connection: Connection, inbox: queue.Queue[list[bytes]]) -> None:
    try:
        while True:
            count = int.from_bytes(connection.recv_bytes(), "little")
            inbox.put([connection.recv_bytes() for _ in range(count)])
    except (EOFError, OSError):  # rank 0 has ended, and with it the launch
        os._exit(0)


def packed(value: Any) -> list[Any]:
    """As frames, of which arrays are some without a copy."""
    import cloudpickle

    buffers: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def unpacked(frames: list[bytes]) -> Any:
    return pickle.loads(frames[0], buffers=frames[1:])


def send(connection: Connection, frames: list[Any]) -> None:
    connection.send_bytes(len(frames).to_bytes(8, "little"))
    for frame in frames:
        connection.send_bytes(frame)
