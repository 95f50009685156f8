"""The MLflow store: where it is, whether it can be one, and how it comes to be."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner import errors
from runner.errors import ConfigError, PreflightError
from runner.reach import unanswered, unreachable
from runner.schema import Tracking

STORES = ("sqlite", "http", "https", "postgresql", "mysql", "mssql", "databricks", "databricks-uc")
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
EXAMPLE = "tracking.uri=sqlite:///mlflow.db"
_SQLITE = "sqlite:///"
_MAGIC = b"SQLite format 3\0"
_NEW = ".new-mlflow.db"
OTHERWISE = "tracking=none to train without it, or tracking.on_outage=spool to train now and record later"
ANSWER_SECONDS = 5.0  # that a server has for a first answer


class OutageError(Exception):
    """The store does not answer, or not now; the message says why."""


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
        raise ConfigError(f"tracking.uri={uri}: MLflow no longer writes to plain folders; type {EXAMPLE}")
    return uri


def check_uri(uri: str, must_answer: bool = True) -> None:
    """Seconds, where MLflow itself would wait for minutes. Raises ConfigError, or PreflightError where none answers."""
    try:
        scheme, where = urlsplit(uri).scheme, endpoint(uri)
    except ValueError as error:  # brackets that are no IPv6, a port that is no number
        raise ConfigError(f"tracking.uri={uri}: no URI ({error}); type {EXAMPLE}") from error
    if uri == "databricks":
        return
    if scheme.split("+")[0] not in STORES:
        raise ConfigError(f"tracking.uri={uri}: MLflow has no such store; type {EXAMPLE}")
    if isinstance(where, Path):
        check_file(uri, where)
    elif where is None and scheme in ("http", "https"):
        raise ConfigError(f"tracking.uri={uri}: names no server; type {EXAMPLE}")
    elif must_answer and (reason := silence_of(uri, ANSWER_SECONDS)):
        raise PreflightError(
            f"tracking.uri={uri}: nothing answers there ({reason}); start the server, or type {OTHERWISE}"
        )


def silence_of(uri: str, seconds: float) -> str | None:
    """Why a store's server does not answer; None where it does, or there is none."""
    if uri.startswith(("http://", "https://")):
        return unanswered(uri, seconds)
    try:
        where = endpoint(uri)
    except ValueError as error:  # the port is no number
        return str(error)
    return None if where is None or isinstance(where, Path) else unreachable(*where)


def lock_of(uri: str, seconds: float) -> str | None:
    """Why a SQLite store cannot be written to; None where it can, or is another store. MLflow waits for 20 s."""
    path = endpoint(uri)
    if not isinstance(path, Path) or not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=seconds, isolation_level=None)) as store:
            store.execute("begin immediate")
            store.execute("rollback")
    except sqlite3.OperationalError as error:
        return str(error)
    return None


def check_file(uri: str, path: Path) -> None:
    """A SQLite file that is one and can be written, or can be made. Raises ConfigError."""
    reason = None
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        if there != path and there.is_dir():
            with tempfile.TemporaryFile(dir=there):
                pass
        elif there != path:
            reason = f"{there} is a file, not a folder"
        elif path.is_dir():
            reason = "is a folder, not a file"
        else:
            with path.open("r+b") as file:
                reason = None if file.read(len(_MAGIC)) in (_MAGIC, b"") else "is no SQLite file"
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
    if reason:
        raise ConfigError(f"tracking.uri={uri}: {reason}; type {EXAMPLE}")


def endpoint(uri: str) -> tuple[str, int] | Path | None:
    """Host and port of a store's server, or the file that it is; None where MLflow alone knows (databricks)."""
    parts = urlsplit(uri)
    if parts.scheme == "sqlite":
        return _path(uri)
    port = parts.port or PORTS.get(parts.scheme.split("+")[0])
    return (parts.hostname, port) if parts.hostname and port else None


def missing(uri: str) -> bool:
    """Whether this is a SQLite file that does not exist: asking MLflow for a run of it would create it."""
    return uri.startswith(_SQLITE) and not _path(uri).exists()


def _path(uri: str) -> Path:
    return Path(urlsplit(uri).path.removeprefix("/"))


def create_default(outputs: Path) -> None:
    """Our own SQLite store, whole or not at all: MLflow never gets over a set-up that was killed half-way."""
    from mlflow import MlflowClient

    for leftover in outputs.glob(f"{_NEW}*"):  # and its journal
        leftover.unlink()
    MlflowClient(f"{_SQLITE}{outputs / _NEW}").search_experiments(max_results=1)
    (outputs / _NEW).replace(_path(default_uri(outputs)))


def creation_lock(uri: str, outputs: Path) -> AbstractContextManager[Any]:
    """Processes that start together must not both create the tables of our SQLite store: MLflow's set-up races."""
    if uri != default_uri(outputs):
        return nullcontext()
    from filelock import FileLock

    return FileLock(outputs / "mlflow.lock")


def first_line(error: BaseException) -> str:
    """Of MLflow's messages, which go on for pages."""
    return errors.first_line(error).partition(" with exception")[0]


def prepare() -> None:
    """Before the first `import mlflow` of a process: quiet, and seconds where a dead server would cost minutes."""
    # It would make workers write into another run.
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # None of its own: it repeats also what creates something, which may then be there twice.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(
        logging.CRITICAL
    )  # it prints traces of what it raises too


def client_of(uri: str) -> Any:
    """An MlflowClient; the import takes a second."""
    prepare()
    from mlflow import MlflowClient

    return MlflowClient(uri)
