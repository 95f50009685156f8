"""From the spools to MLflow: in order, from a thread, again and again while the store does not answer."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.tracking import Outcome
from runner.tracking.entries import Run, is_outage, reason
from runner.tracking.spool import FOLDER, MODEL, Address, Line, Spool
from runner.tracking.store import OutageError, client_of, first_line, lock_of, silence_of

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # s, between two attempts in an outage
CLOSING_SECONDS = 2.0  # that the end of a process waits in an outage
STUCK_SECONDS = 2.0  # that it waits for one request, before it asks whether the server answers at all
PROBE_SECONDS = 1.5
UPLOAD_SECONDS = 10.0  # between two uploads at least: of checkpoints that come faster, the newest is enough
LINES = 200  # of metrics in a request


class Delivery:
    """Delivers the spools of `folder` to one run.

    `asks`: others have written to the run, so that MLflow is asked which metrics it has. `say` is told the beginning and
    the end of an outage; `created` the id of a run that was put off.
    """

    def __init__(
        self,
        folder: Path,
        address: Address,
        spools: Sequence[Spool],
        asks: bool = False,
        say: Callable[[str], None] = lambda line: None,
        created: Callable[[str], None] = lambda run_id: None,
    ) -> None:
        self._folder, self._spools, self._asks = folder, list(spools), asks
        self._address, self._say, self._created = address, say, created
        self._run: Run | None = None
        self._thread: threading.Thread | None = None
        self._closing, self._given_up = threading.Event(), threading.Event()
        self._outage: str | None = None
        self._left: str | None = None  # why it was given up
        self._refused: list[str] = []
        self._failed: Exception | None = None
        self._began: float | None = None  # when the request that is being waited for was sent; monotonic
        self._upload_at = 0.0

    @property
    def run_id(self) -> str | None:
        return self._address.run_id

    @property
    def refused(self) -> Sequence[str]:
        return self._refused

    def add(self, spools: Sequence[Spool]) -> None:
        """Of a writer that is gone; closed with the others."""
        self._asks = True
        if self._run is not None:
            self._run.asks = True
        self._spools += spools

    def put_off(self) -> None:
        """The run will be created later."""
        self._address = Address(self._address.uri, None, was_put_off=True)
        self._address.write(self._folder)

    def deliver(self) -> None:
        """All that is in the spools. Raises OutageError."""
        if self._outage and (silence := self._silence()):
            raise OutageError(silence)
        for spool in self._spools:
            if spool.is_files and not self._closing.is_set() and time.monotonic() < self._upload_at:
                continue
            while not self._given_up.is_set() and (lines := spool.pending()):
                for group in _newest(lines) if spool.is_files else _groups(lines):
                    if self._given_up.is_set():
                        return
                    self._attempt(group, spool)
                    spool.advance(group[-1].end)
                spool.advance(lines[-1].end)
                if spool.is_files:
                    self._upload_at = time.monotonic() + UPLOAD_SECONDS

    def start(self, every: float, first: float = 0.0) -> None:
        """Deliver from a thread, `every` so many seconds, the `first` time after so many, until close()."""
        self._closing.clear()
        self._thread = threading.Thread(
            target=self._deliver_often, args=(every, first), name="mlflow", daemon=True
        )
        self._thread.start()

    def close(self, at_most: float | None = None) -> Outcome:
        """Wait until everything is delivered, in an outage CLOSING_SECONDS, in any case `at_most` seconds."""
        if self._given_up.is_set():  # the next process goes on
            return Outcome(self._left, tuple(self._refused))
        if self._thread is None:
            self.start(0.0)
        assert self._thread is not None
        self._closing.set()
        began = time.monotonic()
        while self._thread.is_alive():
            self._thread.join(0.05)
            waited = time.monotonic() - began
            is_late = at_most is not None and waited > at_most
            if is_late or (self._outage and waited > CLOSING_SECONDS) or self._is_stuck():
                return self._give_up()
        self._thread = None
        if self._failed is not None:
            raise self._failed
        self._remove()
        return Outcome(None, tuple(self._refused))

    def leave(self) -> None:
        """Send no more; another holder of the spools goes on with what is left, once a request on its way has its answer."""
        self._given_up.set()
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._address.write(self._folder)

    def _give_up(self) -> Outcome:
        """Leave the rest to another process. The thread may wait for an answer for seconds, and then changes nothing."""
        self._given_up.set()
        self._left = self._outage or "no answer"
        for spool in self._spools:
            spool.give_up()
        self._address.write(self._folder)
        return Outcome(self._left, tuple(self._refused))

    def _deliver_often(self, every: float, first: float) -> None:
        self._closing.wait(first)
        pause = FIRST_PAUSE
        try:
            while not self._given_up.is_set():
                is_last = self._closing.is_set()
                try:
                    self.deliver()
                except OutageError as outage:
                    self._begin(outage)
                    if is_last:
                        self._given_up.wait(FIRST_PAUSE / 2)
                    else:
                        self._closing.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                if self._given_up.is_set():
                    return
                self._end()
                pause = FIRST_PAUSE
                if is_last:
                    return
                self._closing.wait(every)
        except Exception as error:  # noqa: BLE001 (raised by close(): a thread has nobody else to tell)
            self._failed = error

    def _attempt(self, group: Sequence[Line], spool: Spool) -> None:
        """Raises OutageError; what MLflow refuses is kept in `refused`, and the rest goes on."""
        self._began = time.monotonic()
        try:
            self._send(group)
        except Exception as error:  # MLflow's clients raise many types
            if is_outage(error):
                raise OutageError(reason(error)) from error
            if len(group) > 1:
                for line in group:
                    self._attempt([line], spool)
            elif not _is_superseded(group[0], spool):
                self._refused.append(first_line(error))
        finally:
            self._began = None

    def _send(self, group: Sequence[Line]) -> None:
        if self._run is None:
            put_off = self._address.was_put_off
            self._run = Run(client_of(self._address.uri), self._folder, None, put_off, self._asks)
        if self._run.run_id is None:
            found = Address.read(self._folder) or self._address  # the driver may have created it by now
            self._run.run_id = self._address.run_id or found.run_id
            self._run.was_put_off = found.was_put_off
        self._run.send([line.entry for line in group])
        if group[0].entry["kind"] == "create":
            self._address = Address(self._address.uri, self._run.run_id, self._address.was_put_off)
            self._address.write(self._folder)
            self._created(str(self._run.run_id))

    def _begin(self, outage: OutageError) -> None:
        if self._given_up.is_set():
            return
        waits_for_driver = self._run is not None and self._run.run_id is None  # which has said so
        if self._outage is None and not waits_for_driver:
            self._say(
                f"MLflow at {self._address.uri} does not answer ({outage}); metrics wait in {self._folder / FOLDER} "
                "and follow when it does"
            )
        self._outage = str(outage)

    def _end(self) -> None:
        if self._outage is not None:
            self._outage = None
            self._say(f"MLflow at {self._address.uri} answers again, and has everything")

    def _is_stuck(self) -> bool:
        """Whether a request has no answer and the server gives none to a new one either."""
        began = self._began
        if began is None or time.monotonic() - began < STUCK_SECONDS:
            return False
        if silence := self._silence():
            self._outage = silence
        else:
            self._began = time.monotonic()
        return bool(silence)

    def _silence(self) -> str | None:
        return silence_of(self._address.uri, PROBE_SECONDS) or lock_of(self._address.uri, PROBE_SECONDS)

    def discard(self) -> None:
        """Of a run that is not to be: nothing of it is left."""
        self._address = Address(self._address.uri)
        self._remove()

    def _remove(self) -> None:
        """The folder too, except where others look for the run's id."""
        for model in self._folder.glob(f"{FOLDER}/{MODEL}*") if not self._refused else ():
            if any(spool.is_files for spool in self._spools):
                shutil.rmtree(model, ignore_errors=True)
        for spool in self._spools:
            spool.remove()
        if not self._address.was_put_off and not any(self._folder.glob(f"{FOLDER}/*.jsonl")):
            Address.path(self._folder).unlink(missing_ok=True)
            with suppress(OSError):
                (self._folder / FOLDER).rmdir()


def _groups(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Metrics that follow each other together, anything else by itself."""
    group: list[Line] = []
    for line in lines:
        is_metrics = line.entry["kind"] == "metrics"
        if group and (not is_metrics or len(group) == LINES):
            yield group
            group = []
        if is_metrics:
            group.append(line)
        else:
            yield [line]
    if group:
        yield group


def _newest(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Of checkpoints under one name the newest, in the order of the lines."""
    last = {_name(line): line for line in lines}
    return ([line] for line in lines if last[_name(line)] is line)


def _name(line: Line) -> Any:
    return line.entry.get("name", line.entry["kind"])


def _is_superseded(line: Line, spool: Spool) -> bool:
    """Whether a checkpoint was pruned before or while it was uploaded, and a newer one waits."""
    if not spool.is_files:
        return False
    return any(_name(other) == _name(line) and other.end > line.end for other in spool.pending())
