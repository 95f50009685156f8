"""Files of earlier runs, from the tracking store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.errors import nearest, refuse
from runner.tracking.store import check_uri, client_of, first_line, missing, prepare

RUNS = "runs:/"
BEST = "checkpoints/best"


def fetch(uri: str, tracking_uri: str | None, into: Path, key: str) -> Path:
    """Download `runs:/<run_id>` (its best checkpoint) or `runs:/<run_id>/<artifact>` to `into`; returns where it lies.

    Raises ConfigError, about the config's `key`, where there is no such run or artifact, or no store; ConfigError or
    PreflightError about the store itself.
    """
    if tracking_uri is None:
        raise refuse(key, uri, "without a tracking store there are no runs", "tracking=mlflow")
    check_uri(tracking_uri)  # MLflow would try for minutes
    if missing(tracking_uri):
        raise refuse(key, uri, f"there is no store {tracking_uri}")
    run_id, _, artifact = uri.removeprefix(RUNS).strip("/").partition("/")
    artifact = artifact or BEST
    prepare()
    from mlflow.exceptions import MlflowException

    try:
        client = client_of(tracking_uri)
        client.get_run(run_id)
        there = listed(client, run_id, artifact.rpartition("/")[0])
        if artifact not in there:
            has = f"only {', '.join(there)}" if there else "nothing there"
            close = nearest(artifact, there)
            instead = f"{key}={RUNS}{run_id}/{close}" if close else None
            raise refuse(key, uri, f"the run has no artifact {artifact}, {has}", instead)
        into.mkdir(parents=True, exist_ok=True)
        return Path(client.download_artifacts(run_id, artifact, str(into)))
    except (MlflowException, OSError) as error:
        raise refuse(key, uri, f"the store {tracking_uri} does not have it ({first_line(error)})") from error


def fetch_checkpoints(tracking_uri: str, run_id: str, into: Path) -> Iterator[Path]:
    """The checkpoints that a run has uploaded whole, the newest first; each is downloaded when it is asked for."""
    client = client_of(tracking_uri)
    tags = client.get_run(run_id).data.tags
    for mark in ("last", "best"):
        name = tags.get(f"runner.checkpoint.{mark}")
        if name is not None:
            target = into / mark / name
            target.mkdir(parents=True, exist_ok=True)
            for path in listed(client, run_id, f"checkpoints/{mark}"):
                found = Path(client.download_artifacts(run_id, path, str(into)))
                found.replace(target / found.name)
            yield target


def fetch_if_it_answers(tracking_uri: str, run_id: str, into: Path) -> Iterator[Path]:
    """The same for a rank 0 that starts again: in an outage it has none, and says so."""
    from runner.tracking.entries import is_outage, reason

    try:
        yield from fetch_checkpoints(tracking_uri, run_id, into)
    except Exception as error:
        if not is_outage(error):
            raise
        print(
            f"MLflow at {tracking_uri} does not answer ({reason(error)}), and no checkpoint is here: from the start"
        )


def read_text(client: Any, run_id: str, name: str) -> str | None:
    """The artifact `name` at the root of an existing run; None where it has none."""
    if name not in listed(client, run_id):
        return None
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run_id, name, folder)).read_text()


def listed(client: Any, run_id: str, folder: str = "") -> list[str]:
    """Paths of a run's artifacts right in `folder`."""
    return [found.path for found in client.list_artifacts(run_id, folder or None)]
