"""What is to be recorded, as lines of a file in the run's folder, until MLflow has it.

The file outlives its process, and the line that is being written when that is killed is the only one lost. A second file
holds how many bytes MLflow has taken: written after MLflow's answer, so that a kill in between sends a line again, never
drops one. Both are removed when everything is delivered. A spool belongs to one process at a time: rank 0's to the holder
of rank-0.lock, the driver's to that of run.lock.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.json_file import write_json
from runner.secrets import unmasked

FOLDER, ADDRESS, MODEL = "tracking", "store.json", "model-"
DRIVER, RANK_0, RANK_0_FILES = "driver", "rank-0", "rank-0-files"
WRITERS = (DRIVER, RANK_0, RANK_0_FILES)  # in the order in which their spools are delivered
READ_BYTES = 1 << 20  # at once; a line that is longer is read whole
Entry = dict[str, Any]  # what to record: its "kind", and the arguments (see entries.py)


@dataclass(frozen=True)
class Line:
    end: int  # bytes of the file up to here
    entry: Entry


@dataclass(frozen=True)
class Address:
    """Which MLflow run the spools of a folder belong to; user and password of the URI are not written."""

    uri: str
    run_id: str | None = None  # none yet: the driver's spool has the entry that creates it
    was_put_off: bool = False  # the run was created later than the folder: others may look here for its id

    def write(self, folder: Path) -> None:
        write_json(self.path(folder), asdict(self))

    @staticmethod
    def path(folder: Path) -> Path:
        return folder / FOLDER / ADDRESS

    @classmethod
    def read(cls, folder: Path) -> Address | None:
        try:
            found = cls(**json.loads(cls.path(folder).read_text()))
            return replace(found, uri=unmasked(found.uri))
        except (FileNotFoundError, NotADirectoryError):
            return None


class Spool:
    """The lines of one writer. Any thread may append; one delivers."""

    def __init__(self, folder: Path, writer: str) -> None:
        self.is_files = writer == RANK_0_FILES
        self._path = folder / FOLDER / f"{writer}.jsonl"
        self._mark = self._path.with_suffix(".delivered")
        self._lock = threading.Lock()
        self._file: int | None = None
        self._is_given_up = False
        self._delivered = int(self._mark.read_text()) if self._mark.exists() else 0

    def append(self, entry: Entry) -> None:
        """Raises OSError, with the path, where the disk is full."""
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            file = self._open()
            try:
                if os.write(file, line) != len(line):
                    self._cut()
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                needed = f"{error.strerror} for {len(line)} bytes"
                raise OSError(error.errno, needed, str(self._path)) from error

    def pending(self) -> list[Line]:
        """What MLflow does not have yet, or its beginning; [] where it has everything."""
        return list(self._read())

    @property
    def is_empty(self) -> bool:
        return not self.pending()

    def advance(self, end: int) -> None:
        """MLflow has everything up to `end`."""
        with self._lock:
            if not self._is_given_up:
                write_json(self._mark, end)
                self._delivered = end

    def give_up(self) -> None:
        """This process delivers no more; what it is still waiting for may not move what the next one has marked."""
        with self._lock:
            self._is_given_up = True

    def remove(self) -> None:
        """After the last line is delivered, or where none is to be."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._file, self._delivered = None, 0
            self._mark.unlink(
                missing_ok=True
            )  # first: without it all lines would be sent again, and none lost
            self._path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty, or not there
            self._path.parent.rmdir()

    def _read(self) -> Iterator[Line]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            end = file.seek(self._delivered)
            while end - self._delivered < READ_BYTES and (line := file.readline()).endswith(b"\n"):
                end += len(line)
                yield Line(end, json.loads(line))

    def _open(self) -> int:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._cut()
        return self._file

    def _cut(self) -> None:
        """Without the line that a killed process, or a full disk, left unfinished."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, size - self._delivered, self._delivered)
        if not tail.endswith(b"\n"):
            os.ftruncate(self._file, self._delivered + tail.rfind(b"\n") + 1)


def within(folder: Path, path: Path) -> str:
    """Relative to `folder` where it lies in it, so that the folder may be moved."""
    path = path.absolute()
    return str(path.relative_to(folder.absolute()) if path.is_relative_to(folder.absolute()) else path)
