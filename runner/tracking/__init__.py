"""Where a run is recorded. The backend is chosen once, here; disabled means a null object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.schema import Backend, OnOutage, Tracking


@dataclass(frozen=True)
class Measured:
    """Metrics of one moment of a training; a checkpoint keeps all of them, so that none depends on the store."""

    step: int  # optimizer steps taken
    milliseconds: int  # since 1970, when it was measured
    metrics: dict[str, float]


class Tracker(Protocol):
    """What rank 0 records into a run that the driver has created. No call waits for the store but close."""

    def log_metrics(self, measured: Measured) -> None:
        """A metric is recorded once a step: of a second value for the same key and step nothing is kept."""

    def log_artifact(self, path: Path, name: str) -> None:
        """Upload the checkpoint folder `path` as `name`, its manifest.json last; then the run's tag says that it is whole.

        The tag of `checkpoints/last` is `runner.checkpoint.last`, its value the folder's name. When several wait under
        one name, only the newest is uploaded.
        """

    def log_model(self, model: Any, example: Any) -> None:
        """`model` maps a float tensor like `example` [rows, …] to outputs; it is saved in the run's folder meanwhile."""

    def close(self) -> None:
        """Wait until everything is stored, in an outage for seconds. Raises TrackingError for what the store refuses."""

    def leave(self) -> None:
        """Instead of close: who holds the run's record takes over what is not stored yet."""


class NullTracker:
    def log_metrics(self, measured: Measured) -> None:
        pass

    def log_artifact(self, path: Path, name: str) -> None:
        pass

    def log_model(self, model: Any, example: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def leave(self) -> None:
        pass


@dataclass(frozen=True)
class Outcome:
    """Of what was recorded, when no more follows."""

    outage: str | None = None  # why a part of it waits in the run's folder, if so
    refused: tuple[str, ...] = ()  # what the store does not take, and never will


class RunRecord(Protocol):
    """The driver's side: the run is created (or taken up again), described and ended here, and only here.

    Each call writes to the run's folder and returns; a thread brings it to the store.
    """

    @property
    def run_id(self) -> str | None:
        """None without a store, and while it has not answered yet."""

    uri: str | None

    def log_params(self, params: dict[str, Any]) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        """Results of the run as a whole."""

    def log_text(self, text: str, name: str) -> None: ...

    def log_artifact(self, path: Path) -> None: ...

    def set_tags(self, tags: dict[str, str]) -> None: ...

    def log_event(self, text: str) -> None:
        """What happened, and when: a line of the artifact events.txt, and for a while the tag runner.last_event."""

    def finish(self, status: str, error: str | None = None) -> None:
        """FINISHED, FAILED or KILLED; why, if there is a reason, is the tag runner.error."""

    def take_over(self) -> None:
        """Deliver also what a rank 0 that is gone has left."""

    def close(self, at_most: float | None = None) -> Outcome:
        """Wait until everything is stored: in an outage for seconds, and `at_most` so many. May be called again."""


class NullRecord:
    run_id: str | None = None
    uri: str | None = None

    def log_params(self, params: dict[str, Any]) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        pass

    def log_text(self, text: str, name: str) -> None:
        pass

    def log_artifact(self, path: Path) -> None:
        pass

    def set_tags(self, tags: dict[str, str]) -> None:
        pass

    def log_event(self, text: str) -> None:
        pass

    def finish(self, status: str, error: str | None = None) -> None:
        pass

    def take_over(self) -> None:
        pass

    def close(self, at_most: float | None = None) -> Outcome:
        return Outcome()


def _silent(text: str) -> None:
    pass


def open_tracker(
    settings: Tracking,
    folder: Path,
    record_uri: str | None,
    run_id: str | None,
    history: Sequence[Measured] | None = None,
) -> Tracker:
    """Rank 0's tracker for the driver's run, whose folder is `folder`; without a `run_id` the driver creates it later.

    `history` is given where a training goes on: all that its checkpoint has measured, () from the very start. What of
    it the run does not have is recorded with its own time, and what the training measures again is not repeated.
    """
    if settings.backend is Backend.none or record_uri is None:
        return NullTracker()
    from runner.tracking.mlflow import MlflowTracker

    return MlflowTracker(folder, record_uri, run_id, settings.flush_seconds, history)


def check_store(settings: Tracking, outputs: Path) -> str:
    """Raise ConfigError where the store cannot be one, PreflightError where its server does not answer and has to."""
    uri = store_uri(settings, outputs)
    if uri is None:
        return "none is asked for"
    from runner.tracking.store import check_uri

    check_uri(uri, settings.on_outage is OnOutage.refuse)
    return uri


def store_uri(settings: Tracking, outputs: Path) -> str | None:
    """Where runs are recorded, also those of earlier commands."""
    if settings.backend is Backend.none:
        return None
    from runner.tracking.store import tracking_uri

    return tracking_uri(settings, outputs)


def create_store(settings: Tracking, outputs: Path) -> None:
    """Our own store, where there is none yet: it takes seconds. Raises RunnerError."""
    if settings.backend is not Backend.none:
        from runner.tracking.record import create_own_store

        create_own_store(settings, outputs)


def open_record(
    settings: Tracking,
    outputs: Path,
    folder: Path,
    run_name: str | None,
    parent: str | None = None,
    say: Callable[[str], None] = _silent,
    created: Callable[[str], None] = _silent,
) -> RunRecord:
    """Create the run of `folder` (and, the first time, the store under `outputs`).

    `parent` is a run, or the folder of one that has no id yet. `say` is told that the store does not answer, and
    `created` the run's id, when it has one.
    """
    if settings.backend is Backend.none:
        return NullRecord()
    from runner.tracking.record import create_run

    return create_run(settings, outputs, folder, run_name, parent, say, created)


def reopen_record(
    settings: Tracking,
    outputs: Path,
    folder: Path,
    run_id: str | None,
    say: Callable[[str], None] = _silent,
    created: Callable[[str], None] = _silent,
) -> RunRecord:
    """The run of an earlier command, which is RUNNING again. Raises ConfigError where the store has no such run."""
    from runner.tracking.spool import Address

    if settings.backend is Backend.none or (run_id is None and Address.read(folder) is None):
        return NullRecord()
    from runner.tracking.record import reopen_run

    return reopen_run(settings, outputs, folder, run_id, say, created)
