"""Runs of earlier commands: what the store knows of one."""

from __future__ import annotations

from dataclasses import dataclass

from runner.errors import refuse
from runner.tracking.artifacts import listed, read_text
from runner.tracking.store import check_uri, client_of, first_line, missing, prepare

CONFIG = "config.yaml"
TEXTS = (CONFIG, "launch.json", "overrides.txt", "plan.txt")


@dataclass(frozen=True)
class StoredRun:
    run_id: str
    status: str  # RUNNING, FINISHED, FAILED or KILLED
    tags: dict[str, str]
    config_yaml: str
    files: dict[str, str]  # texts by name: those of TEXTS that the run has


def stored_run(uri: str | None, run_id: str, key: str = "run_id") -> StoredRun:
    """Raises ConfigError, about the config's `key`, where there is no store or no such run, or it is none of runner's."""
    if uri is None:
        raise refuse(key, run_id, "without a tracking store there are no runs", "tracking=mlflow")
    check_uri(uri)
    if missing(uri):
        raise refuse(key, run_id, f"there is no store {uri}", "tracking.uri=… of the store that has it")
    prepare()
    from mlflow.exceptions import MlflowException

    try:
        client = client_of(uri)
        run = client.get_run(run_id)
        there = listed(client, run_id)
        files = {name: read_text(client, run_id, name) or "" for name in TEXTS if name in there}
    except (MlflowException, OSError) as error:
        raise refuse(key, run_id, f"the store {uri} does not have it ({first_line(error)})") from error
    if CONFIG not in files:
        raise refuse(key, run_id, f"no run of runner: it has no artifact {CONFIG}")
    return StoredRun(run_id, run.info.status, dict(run.data.tags), files[CONFIG], files)
