"""Where a run is recorded. The backend is chosen once, here; disabled means a null object."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from runner.schema import Backend, Tracking


class Tracker(Protocol):
    """What rank 0 records into a run that the driver has created. No call blocks the training."""

    def log_metrics(self, metrics: dict[str, float], step: int) -> None: ...

    def log_artifact(self, path: Path, name: str) -> None:
        """Upload the folder `path` as `name`; when several wait under one name, only the newest is uploaded."""

    def log_model(self, model: Any, example: Any) -> None:
        """`model` maps a float tensor like `example` [rows, …] to outputs; blocks until it is stored."""

    def close(self) -> None:
        """Wait until everything is stored; raises what went wrong in the background."""


class NullTracker:
    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        pass

    def log_artifact(self, path: Path, name: str) -> None:
        pass

    def log_model(self, model: Any, example: Any) -> None:
        pass

    def close(self) -> None:
        pass


class RunRecord(Protocol):
    """The driver's side: the run is created, described and ended here, and only here."""

    run_id: str | None
    uri: str | None

    def log_params(self, params: dict[str, Any]) -> None: ...

    def log_text(self, text: str, name: str) -> None: ...

    def log_artifact(self, path: Path) -> None: ...

    def set_tags(self, tags: dict[str, str]) -> None: ...

    def finish(self, status: str) -> None:
        """FINISHED, FAILED or KILLED."""


class NullRecord:
    run_id: str | None = None
    uri: str | None = None

    def log_params(self, params: dict[str, Any]) -> None:
        pass

    def log_text(self, text: str, name: str) -> None:
        pass

    def log_artifact(self, path: Path) -> None:
        pass

    def set_tags(self, tags: dict[str, str]) -> None:
        pass

    def finish(self, status: str) -> None:
        pass


def open_tracker(settings: Tracking, record_uri: str | None, run_id: str | None) -> Tracker:
    """Rank 0's tracker for the driver's run."""
    if settings.backend is Backend.none or record_uri is None or run_id is None:
        return NullTracker()
    from runner.tracking.mlflow import MlflowTracker

    return MlflowTracker(record_uri, run_id, settings.flush_seconds)


def check_store(settings: Tracking, outputs: Path) -> None:
    """Raise ConfigError or PreflightError where the store cannot be one, or its server does not answer."""
    if settings.backend is Backend.mlflow:
        from runner.tracking.record import check_uri, tracking_uri

        check_uri(tracking_uri(settings, outputs))


def store_uri(settings: Tracking, outputs: Path) -> str | None:
    """Where runs are recorded, also those of earlier commands."""
    if settings.backend is Backend.none:
        return None
    from runner.tracking.record import tracking_uri

    return tracking_uri(settings, outputs)


def open_record(
    settings: Tracking, outputs: Path, run_name: str | None, parent_run_id: str | None = None
) -> RunRecord:
    """Create the run (and, the first time, the store under `outputs`)."""
    if settings.backend is Backend.none:
        return NullRecord()
    from runner.tracking.record import MlflowRecord

    return MlflowRecord(settings, outputs, run_name, parent_run_id)
