"""Where a run is recorded. The backend is chosen once, here; disabled means a null object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from runner.schema import Backend, Tracking


@dataclass(frozen=True)
class Measured:
    """Metrics of one moment of a training; a checkpoint keeps all of them, so that none depends on the store."""

    step: int  # optimizer steps taken
    milliseconds: int  # since 1970, when it was measured
    metrics: dict[str, float]


class Tracker(Protocol):
    """What rank 0 records into a run that the driver has created. No call but log_model and close blocks the training."""

    def log_metrics(self, measured: Measured) -> None:
        """A metric is recorded once a step: of a second value for the same key and step nothing is kept."""

    def log_artifact(self, path: Path, name: str) -> None:
        """Upload the checkpoint folder `path` as `name`, its manifest.json last; then the run's tag says that it is whole.

        The tag of `checkpoints/last` is `runner.checkpoint.last`, its value the folder's name. When several wait under
        one name, only the newest is uploaded.
        """

    def log_model(self, model: Any, example: Any) -> None:
        """`model` maps a float tensor like `example` [rows, …] to outputs; blocks until it is stored."""

    def close(self) -> None:
        """Wait until everything is stored; raises what went wrong in the background."""


class NullTracker:
    def log_metrics(self, measured: Measured) -> None:
        pass

    def log_artifact(self, path: Path, name: str) -> None:
        pass

    def log_model(self, model: Any, example: Any) -> None:
        pass

    def close(self) -> None:
        pass


class RunRecord(Protocol):
    """The driver's side: the run is created (or taken up again), described and ended here, and only here."""

    run_id: str | None
    uri: str | None

    def log_params(self, params: dict[str, Any]) -> None: ...

    def log_metrics(self, metrics: dict[str, float]) -> None:
        """Results of the run as a whole, at step 0."""

    def log_text(self, text: str, name: str) -> None: ...

    def log_artifact(self, path: Path) -> None: ...

    def set_tags(self, tags: dict[str, str]) -> None: ...

    def log_event(self, text: str) -> None:
        """What happened, and when: a line of the artifact events.txt, and for a while the tag runner.last_event."""

    def finish(self, status: str, error: str | None = None) -> None:
        """FINISHED, FAILED or KILLED; why, if there is a reason, is the tag runner.error."""


class NullRecord:
    run_id: str | None = None
    uri: str | None = None

    def log_params(self, params: dict[str, Any]) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float]) -> None:
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


def open_tracker(
    settings: Tracking,
    record_uri: str | None,
    run_id: str | None,
    history: Sequence[Measured] | None = None,
) -> Tracker:
    """Rank 0's tracker for the driver's run.

    `history` is given where a training goes on: all that its checkpoint has measured, () from the very start. What of
    it the run does not have is recorded with its own time, and what the training measures again is not repeated.
    """
    if settings.backend is Backend.none or record_uri is None or run_id is None:
        return NullTracker()
    from runner.tracking.mlflow import MlflowTracker

    return MlflowTracker(record_uri, run_id, settings.flush_seconds, history)


def check_store(settings: Tracking, outputs: Path) -> str:
    """Raise ConfigError or PreflightError where the store cannot be one, or its server does not answer."""
    if settings.backend is Backend.none:
        return "none is asked for"
    from runner.tracking.store import check_uri, tracking_uri

    uri = tracking_uri(settings, outputs)
    check_uri(uri)
    return uri


def store_uri(settings: Tracking, outputs: Path) -> str | None:
    """Where runs are recorded, also those of earlier commands."""
    if settings.backend is Backend.none:
        return None
    from runner.tracking.store import tracking_uri

    return tracking_uri(settings, outputs)


def open_record(
    settings: Tracking, outputs: Path, run_name: str | None, parent_run_id: str | None = None
) -> RunRecord:
    """Create the run (and, the first time, the store under `outputs`)."""
    if settings.backend is Backend.none:
        return NullRecord()
    from runner.tracking.record import create_run

    return create_run(settings, outputs, run_name, parent_run_id)


def reopen_record(settings: Tracking, outputs: Path, run_id: str | None) -> RunRecord:
    """The run of an earlier command, which is RUNNING again. Raises ConfigError where the store has no such run."""
    if settings.backend is Backend.none or run_id is None:
        return NullRecord()
    from runner.tracking.record import reopen_run

    return reopen_run(settings, outputs, run_id)
