"""Files of earlier runs, from the tracking store."""

from __future__ import annotations

import os
from pathlib import Path

from runner.errors import nearest, refuse
from runner.tracking.mlflow import prepare

RUNS = "runs:/"
BEST = "checkpoints/best"


def fetch(uri: str, tracking_uri: str | None, into: Path) -> Path:
    """Download `runs:/<run_id>` (its best checkpoint) or `runs:/<run_id>/<artifact>` to `into`; returns where it lies.

    Raises ConfigError where there is no such run or artifact, or no store.
    """
    key = "model.init_from"
    if tracking_uri is None:
        raise refuse(key, uri, "without a tracking store there are no runs", "tracking=mlflow")
    run_id, _, artifact = uri.removeprefix(RUNS).strip("/").partition("/")
    artifact = artifact or BEST
    prepare()
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(tracking_uri)
    try:
        client.get_run(run_id)
        folder = artifact.rpartition("/")[0]
        there = [found.path for found in client.list_artifacts(run_id, folder or None)]
        if artifact not in there:
            has = f"only {', '.join(there)}" if there else "nothing there"
            close = nearest(artifact, there)
            instead = f"{key}={RUNS}{run_id}/{close}" if close else None
            raise refuse(key, uri, f"the run has no artifact {artifact}, {has}", instead)
        into.mkdir(parents=True, exist_ok=True)
        return Path(client.download_artifacts(run_id, artifact, str(into)))
    except (MlflowException, OSError) as error:
        line = str(error).partition("\n")[0]
        raise refuse(key, uri, f"the store {tracking_uri} does not have it ({line})") from error
