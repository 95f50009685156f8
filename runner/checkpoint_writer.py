"""Writes checkpoints beside the training, in a thread: the training waits for its own copy, not for the disk."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from runner import checkpoint, retention
from runner.snapshot import Snapshot

NICENESS = 19  # the training's own threads go first


class Writer:
    """Commits snapshots in the order in which they come, and prunes after each.

    One snapshot is in work at a time and none waits behind it: `put` waits while the one before is still being
    written. So there are two in memory at most, and no step is left out when the disk is slow.

    `committed` is called in the writer's thread with each new checkpoint's folder, before what is older is pruned.
    An error, its or the disk's, is raised by the next `put` or by `close`, once.
    """

    def __init__(
        self,
        root: Path,
        keep: int,
        keep_best: int,
        maximise: bool,
        committed: Callable[[Path, Snapshot], None] = lambda path, snapshot: None,
        pinned: str | None = None,
    ) -> None:
        self._root, self._committed, self._pinned = root, committed, pinned
        self._keep, self._keep_best, self._maximise = keep, keep_best, maximise
        self._given: SimpleQueue[Snapshot | None] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def put(self, snapshot: Snapshot) -> None:
        """Have it written; returns at once unless the one before is still in work. Raises an earlier one's error."""
        self._idle.wait()
        self._raise()
        if self._thread is None:
            # A daemon: a process that ends without `close` leaves a half-written folder, which the next commit removes.
            self._thread = threading.Thread(target=self._work, name="checkpoint writer", daemon=True)
            self._thread.start()
        self._idle.clear()
        self._given.put(snapshot)

    def close(self) -> None:
        """Wait for what was put. Raises its error."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
            self._thread = None
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        _stand_back()
        while (snapshot := self._given.get()) is not None:
            try:
                self._write(snapshot)
            except BaseException as error:  # noqa: BLE001 (raised again, in the training's thread)
                self._error = error
            del snapshot  # not to be held until the next one comes
            self._idle.set()

    def _write(self, snapshot: Snapshot) -> None:
        path = checkpoint.commit(
            self._root,
            snapshot.name,
            snapshot.weights,
            snapshot.state,
            snapshot.facts,
            snapshot.attachments,
        )
        self._committed(path, snapshot)
        retention.prune(
            self._root, self._keep, self._keep_best, self._maximise, newest=path, pinned=self._pinned
        )


def _stand_back() -> None:
    """Give this thread a lower priority than the training's. On Linux alone a thread has one of its own."""
    if sys.platform == "linux":
        with suppress(OSError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
