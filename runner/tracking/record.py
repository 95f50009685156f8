"""The driver's side of an MLflow run: the store, the run, its description and its final status."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.errors import ConfigError, PreflightError, RunnerError
from runner.reach import unreachable
from runner.schema import Tracking
from runner.tracking.mlflow import clean, prepare

STORES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "")
MAX_PARAMS, MAX_PARAM_LENGTH = 100, 6000  # a batch; characters (MLflow's limits)


class MlflowRecord:
    """A run created by the driver. SQLite and artifacts lie under `outputs` unless the user chose a store."""

    def __init__(
        self, settings: Tracking, outputs: Path, run_name: str | None, parent_run_id: str | None
    ) -> None:
        prepare()
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self.uri: str | None = tracking_uri(settings, outputs)
        try:
            with _creation_lock(self.uri, outputs):
                self._client = MlflowClient(self.uri)
                self._client.search_experiments(max_results=1)
            experiment_id = self._experiment(settings, outputs)
            run = self._client.create_run(experiment_id, run_name=run_name, tags=_run_tags(parent_run_id))
        except (MlflowException, OSError) as error:
            first_line = str(error).splitlines()[0].partition(" with exception")[0]
            raise RunnerError(
                f"tracking.uri={self.uri}: MLflow cannot be used ({first_line}); "
                "type tracking=none to train without it"
            ) from error
        self.run_id: str | None = run.info.run_id
        self._id: str = run.info.run_id

    def log_params(self, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        entries = [Param(clean(key), str(value)[:MAX_PARAM_LENGTH]) for key, value in params.items()]
        for start in range(0, len(entries), MAX_PARAMS):
            self._client.log_batch(self._id, params=entries[start : start + MAX_PARAMS])

    def log_text(self, text: str, name: str) -> None:
        self._client.log_text(self._id, text, name)

    def log_artifact(self, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._id, str(path), path.name)
        elif path.exists():
            self._client.log_artifact(self._id, str(path))

    def set_tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._id, tags=[RunTag(key, value) for key, value in tags.items()])

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._id, status)

    def _experiment(self, settings: Tracking, outputs: Path) -> str:
        name = settings.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "runner"
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A store of our own keeps its artifacts beside it; MLflow would put them into the current directory.
        location = (outputs / "artifacts").as_uri() if self.uri == default_uri(outputs) else None
        return str(self._client.create_experiment(name, artifact_location=location))


def default_uri(outputs: Path) -> str:
    return f"sqlite:///{outputs / 'mlflow.db'}"


def tracking_uri(settings: Tracking, outputs: Path) -> str:
    """The store: tracking.uri, else MLFLOW_TRACKING_URI, else SQLite under `outputs`; relative paths made absolute."""
    uri = settings.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        outputs.mkdir(parents=True, exist_ok=True)
        return default_uri(outputs)
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        return f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise ConfigError(
            f"tracking.uri={uri}: MLflow no longer writes to plain folders; type tracking.uri=sqlite:///mlflow.db"
        )
    return uri


def check_uri(uri: str) -> None:
    """Seconds, where MLflow itself would retry for minutes."""
    parts = urlsplit(uri)
    if parts.scheme.split("+")[0] not in STORES:
        raise ConfigError(
            f"tracking.uri={uri}: MLflow has no such store; type tracking.uri=sqlite:///mlflow.db"
        )
    if parts.scheme not in ("http", "https"):
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        reason = unreachable(parts.hostname or "", port)
    except ValueError as error:  # the port is no number
        reason = str(error)
    if reason:
        raise PreflightError(
            f"tracking.uri={uri}: nothing answers there ({reason}); start the server, or type tracking=none to "
            "train without it"
        )


def _creation_lock(uri: str | None, outputs: Path) -> AbstractContextManager[Any]:
    """Processes that start together must not both create the tables of our SQLite store: MLflow's set-up races."""
    if uri != default_uri(outputs):
        return nullcontext()
    from filelock import FileLock

    return FileLock(outputs / "mlflow.lock")


def _run_tags(parent_run_id: str | None) -> dict[str, str]:
    return {"mlflow.parentRunId": parent_run_id} if parent_run_id else {}
