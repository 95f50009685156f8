"""What earlier processes have left in the spools of a run's folder, which nobody else may be at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from runner.tracking import Outcome
from runner.tracking.spool import DRIVER, WRITERS, Address, Entry, Spool, within


def has_left(folder: Path) -> bool:
    """Quick: asked of thousands of folders."""
    return Address.path(folder).exists() and any(not Spool(folder, writer).is_empty for writer in WRITERS)


def end_lost_run(folder: Path, uri: str, run_id: str | None, error: str) -> None:
    """Say in the spool that a run whose driver is gone has FAILED, unless MLflow says by then that it has ended."""
    end = round(time.time() * 1000)
    entry = {"kind": "status", "status": "FAILED", "error": error, "end": end, "only_if_running": True}
    _add(folder, uri, run_id, entry)


def add_artifact(folder: Path, uri: str, run_id: str | None, name: str) -> None:
    """What was made of a run after its end: a file or folder in that of the run."""
    _add(folder, uri, run_id, {"kind": "artifact", "path": name})


def add_model(folder: Path, uri: str, run_id: str | None, path: Path) -> None:
    """A model that was saved after its run's end."""
    _add(folder, uri, run_id, {"kind": "model", "path": within(folder, path), "mark": path.name})


def _add(folder: Path, uri: str, run_id: str | None, entry: Entry) -> None:
    if Address.read(folder) is None:
        Address(uri, run_id).write(folder)
    Spool(folder, DRIVER).append(entry)


def deliver_left(
    folder: Path, created: Callable[[str], None] = lambda run_id: None, at_most: float | None = None
) -> Outcome:
    """`created` is told the id of a run that MLflow gets only now; `at_most` is in seconds."""
    address = Address.read(folder)
    if address is None:
        return Outcome()
    from runner.tracking.delivery import Delivery
    from runner.tracking.store import missing

    if missing(address.uri):  # MLflow would create it
        return Outcome(f"there is no store {address.uri}")
    spools = [Spool(folder, writer) for writer in WRITERS]
    return Delivery(folder, address, spools, asks=True, created=created).close(at_most)
