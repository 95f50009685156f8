"""The driver's side of an MLflow run: created or taken up again, described, and ended with its final status."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, PreflightError, RunnerError
from runner.schema import OnOutage, Tracking
from runner.secrets import masked
from runner.tracking import Outcome
from runner.tracking.delivery import PROBE_SECONDS, Delivery
from runner.tracking.entries import MAX_PARAM_LENGTH, is_outage
from runner.tracking.mlflow import clean
from runner.tracking.spool import DRIVER, FOLDER, RANK_0, RANK_0_FILES, Address, Entry, Spool, within
from runner.tracking.store import (
    OTHERWISE,
    OutageError,
    client_of,
    create_default,
    creation_lock,
    default_uri,
    first_line,
    missing,
    prepare,
    silence_of,
    tracking_uri,
)

EVERY_SECONDS = 0.2
Say = Callable[[str], None]


class MlflowRecord:
    """A run of the store at `uri`, whose spool lies in `folder`."""

    def __init__(self, folder: Path, uri: str, spool: Spool, delivery: Delivery) -> None:
        self.uri: str | None = uri
        self._folder, self._spool, self._delivery = folder, spool, delivery

    @property
    def run_id(self) -> str | None:
        return self._delivery.run_id

    def log_params(self, params: dict[str, Any]) -> None:
        cleaned = {clean(key): str(value)[:MAX_PARAM_LENGTH] for key, value in masked(params).items()}
        self._add("params", params=cleaned)

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        cleaned = {clean(key): float(value) for key, value in metrics.items()}
        self._add("metrics", step=step, milliseconds=round(time.time() * 1000), metrics=cleaned)

    def log_text(self, text: str, name: str) -> None:
        self._add("text", text=text, name=name)

    def log_artifact(self, path: Path) -> None:
        if path.exists():
            self._add("artifact", path=within(self._folder, path))

    def set_tags(self, tags: dict[str, str]) -> None:
        self._add("tags", tags=tags)

    def log_event(self, text: str) -> None:
        self._add("event", at=_now(), text=" ".join(text.split()))

    def finish(self, status: str, error: str | None = None) -> None:
        self._add("status", status=status, error=error, end=round(time.time() * 1000))

    def take_over(self) -> None:
        self._delivery.add([Spool(self._folder, writer) for writer in (RANK_0, RANK_0_FILES)])

    def close(self, at_most: float | None = None) -> Outcome:
        return self._delivery.close(at_most)

    def _add(self, kind: str, **arguments: Any) -> None:
        self._spool.append(masked({"kind": kind, **arguments}))  # a file, and then MLflow


def create_run(
    settings: Tracking,
    outputs: Path,
    folder: Path,
    run_name: str | None,
    parent: str | None,
    say: Say,
    created: Callable[[str], None],
) -> MlflowRecord:
    """A new run. SQLite and artifacts lie under `outputs` unless the user chose a store. Raises RunnerError.

    With tracking.on_outage=spool a store that does not answer gets the run later: until then it has no id.
    """
    uri = tracking_uri(settings, outputs)
    create_own_store(settings, outputs)
    # A store of our own keeps its artifacts beside it; MLflow would put them into the current directory.
    location = (outputs / "artifacts").as_uri() if uri == default_uri(outputs) else None
    creation = {
        "kind": "create",
        "experiment": settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "runner",
        "location": location,
        "name": run_name,
        "parent": parent,
        "start": round(time.time() * 1000),
        "mark": uuid.uuid4().hex,
    }

    def refused(why: str, is_out: bool) -> RunnerError:
        instead = OTHERWISE if is_out else "tracking=none to train without it"
        kind = PreflightError if is_out else RunnerError
        return kind(f"tracking.uri={uri}: MLflow cannot be used ({why}); type {instead}")

    return _open(settings, folder, Address(uri), creation, say, created, refused)


def reopen_run(
    settings: Tracking,
    outputs: Path,
    folder: Path,
    run_id: str | None,
    say: Say,
    created: Callable[[str], None],
) -> MlflowRecord:
    """The run goes on: what its folder still holds is delivered, then it is RUNNING again, without the error that ended
    it, which becomes an event. Raises ConfigError where the store does not have it."""
    uri = tracking_uri(settings, outputs)
    if missing(uri):
        raise ConfigError(
            f"run_id={run_id}: there is no store {uri}; type tracking.uri=… of the store that has it"
        )
    known = Address.read(folder) or Address(uri)
    address = Address(uri, run_id or known.run_id, known.was_put_off)

    def refused(why: str, is_out: bool) -> RunnerError:
        if is_out:
            return PreflightError(f"tracking.uri={uri}: MLflow cannot be used ({why}); type {OTHERWISE}")
        return ConfigError(f"run_id={run_id}: the store {uri} cannot take it up again ({why})")

    return _open(settings, folder, address, {"kind": "reopen", "at": _now()}, say, created, refused)


def _open(
    settings: Tracking,
    folder: Path,
    address: Address,
    first: Entry,
    say: Say,
    created: Callable[[str], None],
    refused: Callable[[str, bool], RunnerError],
) -> MlflowRecord:
    """The record, with `first` in MLflow, or in the spool where that is allowed."""
    spool = Spool(folder, DRIVER)
    delivery = Delivery(folder, address, [spool], created=created)
    is_added, left = False, 0
    try:
        if silence := silence_of(address.uri, PROBE_SECONDS):
            raise OutageError(silence)
        delivery.deliver()  # what an earlier command has left
        left = len(delivery.refused)
        address.write(folder)
        spool.append(first)
        is_added = True
        delivery.deliver()
    except OutageError as outage:
        if settings.on_outage is OnOutage.refuse:
            if is_added:  # or it would be recorded later, though nothing was trained
                delivery.discard()
            raise refused(str(outage), True) from outage
        if address.run_id is None:
            delivery.put_off()
        else:
            address.write(folder)
        if not is_added:
            spool.append(first)
        say(
            f"MLflow at {address.uri} does not answer ({outage}); this run waits in {folder / FOLDER} and follows "
            "when it does"
        )
    if len(delivery.refused) > left:
        delivery.discard()
        raise refused(delivery.refused[-1], False)
    delivery.start(EVERY_SECONDS)
    return MlflowRecord(folder, address.uri, spool, delivery)


def create_own_store(settings: Tracking, outputs: Path) -> None:
    """SQLite under `outputs`, unless the user chose a store. Raises RunnerError."""
    uri = tracking_uri(settings, outputs)
    if uri != default_uri(outputs):
        return
    try:
        with creation_lock(uri, outputs):
            if missing(uri):
                prepare()
                create_default(outputs)
            client_of(uri).search_experiments(max_results=1)
    except Exception as error:  # MLflow's and SQLAlchemy's many types
        if is_outage(error) and not missing(uri):
            return  # locked: it is there
        raise RunnerError(
            f"tracking.uri={uri}: MLflow cannot be used ({first_line(error)}); "
            "type tracking=none to train without it"
        ) from error


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
