"""Runs that the store has, by their tags: the jobs of a sweep, and those that were trained before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.tracking.store import client_of, missing, prepare

PAGE = 1000  # runs an answer


@dataclass(frozen=True)
class Found:
    """A run, as it is now."""

    run_id: str
    experiment_id: str
    name: str
    status: str  # MLflow's: RUNNING, FINISHED, FAILED or KILLED
    started: int  # ms since 1970
    ended: int | None
    tags: dict[str, str]
    metrics: dict[str, float]  # the last value of each


def find(uri: str, tags: Mapping[str, str]) -> list[Found]:
    """All runs of the store at `uri` with these tags, newest first. Raises what MLflow raises."""
    if missing(uri):
        return []
    prepare()
    client = client_of(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    wanted = " and ".join(f"tags.`{name}` = {_quoted(value)}" for name, value in tags.items())
    found: list[Found] = []
    token = None
    while True:
        page = client.search_runs(experiments, wanted, max_results=PAGE, page_token=token)
        found += [_found(run) for run in page]
        token = page.token
        if not token:
            return found


def stored(uri: str, run_id: str) -> Found | None:
    """The run with this id; None where the store has none. Raises what MLflow raises of other things."""
    if missing(uri):
        return None
    prepare()
    from mlflow.exceptions import MlflowException

    try:
        return _found(client_of(uri).get_run(run_id))
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _quoted(value: str) -> str:
    """As MLflow's filters take it: they have two quotes, and no way to escape one."""
    return f'"{value}"' if "'" in value else f"'{value}'"


def _found(run: object) -> Found:
    info, data = run.info, run.data  # type: ignore[attr-defined]
    return Found(
        run_id=info.run_id,
        experiment_id=info.experiment_id,
        name=info.run_name,
        status=info.status,
        started=info.start_time,
        ended=info.end_time,
        tags=dict(data.tags),
        metrics=dict(data.metrics),
    )


def history(uri: str, run_id: str, key: str) -> dict[float, float]:
    """The values of a metric by epochs trained."""
    client = client_of(uri)
    epochs = {each.step: each.value for each in client.get_metric_history(run_id, "epoch")}
    values = client.get_metric_history(run_id, key)
    return {epochs[each.step]: each.value for each in values if each.step in epochs}
