"""The driver's side of an MLflow run: created or taken up again, described, and ended with its final status."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.errors import ConfigError, RunnerError
from runner.schema import Tracking
from runner.secrets import mask, masked
from runner.tracking.artifacts import read_text
from runner.tracking.mlflow import clean, prepare
from runner.tracking.store import (
    create_default,
    creation_lock,
    default_uri,
    first_line,
    missing,
    tracking_uri,
)

MAX_PARAMS, MAX_PARAM_LENGTH = 100, 6000  # a batch; characters (MLflow's limits)
MAX_NOTE = 500  # characters of a tag that people read (MLflow takes 8000)
ERROR, LAST_EVENT = "runner.error", "runner.last_event"
EVENTS = "events.txt"


class MlflowRecord:
    """An existing run of the store at `uri`."""

    def __init__(self, client: Any, uri: str, run_id: str, events: str = "") -> None:
        self.uri: str | None = uri
        self.run_id: str | None = run_id
        self._client, self._id, self._events = client, run_id, events

    def log_params(self, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(clean(key), str(value)[:MAX_PARAM_LENGTH]) for key, value in masked(params).items()]
        for start in range(0, len(entries), MAX_PARAMS):
            self._client.log_batch(self._id, params=entries[start : start + MAX_PARAMS])

    def log_metrics(self, metrics: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        entries = [Metric(clean(key), value, now, 0) for key, value in metrics.items()]
        self._client.log_batch(self._id, metrics=entries)

    def log_text(self, text: str, name: str) -> None:
        self._client.log_text(self._id, mask(text), name)

    def log_artifact(self, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._id, str(path), path.name)
        elif path.exists():
            self._client.log_artifact(self._id, str(path))

    def set_tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._id, tags=[RunTag(key, value) for key, value in masked(tags).items()])

    def log_event(self, text: str) -> None:
        # An artifact, for a tag has a limit; the whole of it each time, for an artifact cannot be appended to.
        line = mask(" ".join(text.split()))
        self._events += f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}\n"
        self._client.log_text(self._id, self._events, EVENTS)
        self._client.set_tag(self._id, LAST_EVENT, line[:MAX_NOTE])

    def finish(self, status: str, error: str | None = None) -> None:
        self._client.set_terminated(self._id, status)  # first: it matters more than the reason
        if error:
            self._client.set_tag(self._id, ERROR, mask(error)[:MAX_NOTE])


def create_run(
    settings: Tracking, outputs: Path, run_name: str | None, parent_run_id: str | None
) -> MlflowRecord:
    """A new run. SQLite and artifacts lie under `outputs` unless the user chose a store. Raises RunnerError."""
    prepare()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = tracking_uri(settings, outputs)
    tags = {"mlflow.parentRunId": parent_run_id} if parent_run_id else {}
    try:
        with creation_lock(uri, outputs):
            if uri == default_uri(outputs) and missing(uri):
                create_default(outputs)
            client = MlflowClient(uri)
            client.search_experiments(max_results=1)
        # A store of our own keeps its artifacts beside it; MLflow would put them into the current directory.
        location = (outputs / "artifacts").as_uri() if uri == default_uri(outputs) else None
        run = client.create_run(_experiment_id(client, settings, location), run_name=run_name, tags=tags)
    except (MlflowException, OSError) as error:
        raise RunnerError(
            f"tracking.uri={uri}: MLflow cannot be used ({first_line(error)}); "
            "type tracking=none to train without it"
        ) from error
    return MlflowRecord(client, uri, run.info.run_id)


def reopen_run(settings: Tracking, outputs: Path, run_id: str) -> MlflowRecord:
    """The run goes on: RUNNING, without the error that ended it, which becomes an event. Raises ConfigError."""
    uri = tracking_uri(settings, outputs)
    if missing(uri):
        raise ConfigError(
            f"run_id={run_id}: there is no store {uri}; type tracking.uri=… of the store that has it"
        )
    prepare()
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(uri)
        run = client.get_run(run_id)
        client.update_run(run_id, "RUNNING")
        record = MlflowRecord(client, uri, run_id, read_text(client, run_id, EVENTS) or "")
        if ERROR in run.data.tags:
            record.log_event(f"{run.info.status}: {run.data.tags[ERROR]}")
            client.delete_tag(run_id, ERROR)
    except (MlflowException, OSError) as error:
        raise ConfigError(
            f"run_id={run_id}: the store {uri} cannot take it up again ({first_line(error)})"
        ) from error
    return record


def _experiment_id(client: Any, settings: Tracking, artifact_location: str | None) -> str:
    name = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "runner"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=artifact_location))
