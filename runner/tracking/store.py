"""The MLflow store: where it is, whether it can be one, and how it comes to be."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner.errors import ConfigError, PreflightError
from runner.reach import unreachable
from runner.schema import Tracking

STORES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "")
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_SQLITE = "sqlite:///"
_NEW = ".new-mlflow.db"


def default_uri(outputs: Path) -> str:
    return f"{_SQLITE}{outputs / 'mlflow.db'}"


def tracking_uri(settings: Tracking, outputs: Path) -> str:
    """The store: tracking.uri, else MLFLOW_TRACKING_URI, else SQLite under `outputs`; relative paths made absolute."""
    uri = settings.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        outputs.mkdir(parents=True, exist_ok=True)
        return default_uri(outputs)
    if uri.startswith(_SQLITE) and not uri.startswith(f"{_SQLITE}/"):
        return f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).absolute()}"
    if uri.startswith("file:") or ("://" not in uri and uri != "databricks"):
        raise ConfigError(
            f"tracking.uri={uri}: MLflow no longer writes to plain folders; type tracking.uri=sqlite:///mlflow.db"
        )
    return uri


def check_uri(uri: str) -> None:
    """Seconds, where MLflow itself would retry for minutes. Raises ConfigError or PreflightError."""
    parts = urlsplit(uri)
    if parts.scheme.split("+")[0] not in STORES:
        raise ConfigError(
            f"tracking.uri={uri}: MLflow has no such store; type tracking.uri=sqlite:///mlflow.db"
        )
    try:
        where = endpoint(uri)
        reason = None if where is None or isinstance(where, Path) else unreachable(*where)
    except ValueError as error:  # the port is no number
        reason = str(error)
    if reason:
        raise PreflightError(
            f"tracking.uri={uri}: nothing answers there ({reason}); start the server, or type tracking=none to "
            "train without it"
        )


def endpoint(uri: str) -> tuple[str, int] | Path | None:
    """Host and port of a store's server, or the file that it is; None where MLflow alone knows (databricks)."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        return Path(parts.path.removeprefix("/"))
    port = parts.port or PORTS.get(parts.scheme.split("+")[0])
    return (parts.hostname, port) if parts.hostname and port else None


def missing(uri: str) -> bool:
    """Whether this is a SQLite file that does not exist: asking MLflow for a run of it would create it."""
    return uri.startswith(_SQLITE) and not Path(urlsplit(uri).path.removeprefix("/")).exists()


def create_default(outputs: Path) -> None:
    """Our own SQLite store, whole or not at all: MLflow never gets over a set-up that was killed half-way."""
    from mlflow import MlflowClient

    for leftover in outputs.glob(f"{_NEW}*"):  # and its journal
        leftover.unlink()
    MlflowClient(f"{_SQLITE}{outputs / _NEW}").search_experiments(max_results=1)
    (outputs / _NEW).replace(urlsplit(default_uri(outputs)).path.removeprefix("/"))


def creation_lock(uri: str, outputs: Path) -> AbstractContextManager[Any]:
    """Processes that start together must not both create the tables of our SQLite store: MLflow's set-up races."""
    if uri != default_uri(outputs):
        return nullcontext()
    from filelock import FileLock

    return FileLock(outputs / "mlflow.lock")


def first_line(error: BaseException) -> str:
    """Of MLflow's messages, which go on for pages."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].partition(" with exception")[0]
