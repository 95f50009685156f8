"""What each line of a spool is in MLflow. Each may be sent again: then nothing is there twice.

Equal metrics (key, value, time, step) are one row of MLflow's SQL store: the primary key of its table `metrics`
(mlflow/store/tracking/dbmodels/models.py, SqlMetric). What MLflow would create anew, a run or a model, carries a mark in
a tag, by which it is found again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.tracking.artifacts import read_text
from runner.tracking.spool import Address, Entry
from runner.tracking.store import OutageError, first_line

MAX_METRICS, MAX_PARAMS, MAX_PARAM_LENGTH = 1000, 100, 6000  # a batch; characters (MLflow's limits)
MAX_NOTE = 500  # characters of a tag that people read (MLflow takes 8000)
ERROR, LAST_EVENT, MARK = "runner.error", "runner.last_event", "runner.mark"
EVENTS = "events.txt"
CHECKPOINTS, MANIFEST = "checkpoints/", "manifest.json"


class Run:
    """A run of the store, and what of it `send` needs to know."""

    def __init__(self, client: Any, folder: Path, run_id: str | None, was_put_off: bool, asks: bool) -> None:
        self.run_id, self.was_put_off = run_id, was_put_off
        self._client, self._folder = client, folder
        self.asks = asks  # whether others have written metrics to it
        self._logged: defaultdict[str, set[int]] = defaultdict(set)  # steps by key

    def send(self, entries: Sequence[Entry]) -> None:
        """One entry, or several that are metrics. Raises whatever MLflow's client does; OutageError where there is no run yet."""
        kind = entries[0]["kind"]
        if kind == "create":
            self.create(**_arguments(entries[0]))
            return
        if self.run_id is None:
            raise OutageError("its run is not there yet")
        if kind == "metrics":
            self.metrics(entries)
        else:
            action: Callable[..., None] = getattr(self, kind)
            action(**_arguments(entries[0]))

    def create(
        self,
        experiment: str,
        location: str | None,
        name: str | None,
        parent: str | None,
        start: int,
        mark: str,
    ) -> None:
        """`parent`: an MLflow run, or the folder of one that was not there yet either. `start`: ms since 1970."""
        experiment_id = self._experiment_id(experiment, location)
        tags = {MARK: mark}
        if parent is not None and (parent_id := _parent_id(parent)) is not None:
            tags["mlflow.parentRunId"] = parent_id
        twins = self._twins(experiment_id, mark) if self.was_put_off else []
        run_id = twins[0] if twins else self._client.create_run(experiment_id, start, tags, name).info.run_id
        self.run_id = str(run_id)

    def reopen(self, at: str) -> None:
        """The run goes on: RUNNING, without the error that ended it, which becomes an event."""
        run = self._client.get_run(self.run_id)
        self._client.update_run(self.run_id, "RUNNING")
        if ERROR in run.data.tags:
            self.event(at, f"{run.info.status}: {run.data.tags[ERROR]}")
            with suppress(KeyError):
                self._client.delete_tag(self.run_id, ERROR)

    def metrics(self, entries: Sequence[Entry]) -> None:
        """A metric is recorded once a step, whoever has measured it first."""
        from mlflow.entities import Metric

        if self.asks:
            for key in self._client.get_run(self.run_id).data.metrics:
                history = self._client.get_metric_history(self.run_id, key)
                self._logged[key] = {metric.step for metric in history}
            self.asks = False
        waiting = {
            (key, entry["step"]): Metric(key, value, entry["milliseconds"], entry["step"])
            for entry in reversed(entries)
            for key, value in entry["metrics"].items()
            if entry["step"] not in self._logged[key]
        }
        batch = list(reversed(waiting.values()))
        for start in range(0, len(batch), MAX_METRICS):
            sent = batch[start : start + MAX_METRICS]
            self._client.log_batch(self.run_id, metrics=sent)
            for metric in sent:
                self._logged[metric.key].add(metric.step)

    def params(self, params: dict[str, str]) -> None:
        from mlflow.entities import Param

        entries = [Param(key, value) for key, value in params.items()]
        for start in range(0, len(entries), MAX_PARAMS):
            self._client.log_batch(self.run_id, params=entries[start : start + MAX_PARAMS])

    def tags(self, tags: dict[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def text(self, text: str, name: str) -> None:
        self._client.log_text(self.run_id, text, name)

    def artifact(self, path: str) -> None:
        """A file or folder, relative to that of the run."""
        found = self._folder / path
        if found.is_dir():
            self._client.log_artifacts(self.run_id, str(found), found.name)
        else:
            self._client.log_artifact(self.run_id, str(found))

    def checkpoint(self, path: str, name: str) -> None:
        """The manifest last: until it is there, the old one's sha256 tells that the files are not of one checkpoint."""
        found = self._folder / path
        for file in sorted(found.iterdir(), key=lambda file: (file.name == MANIFEST, file.name)):
            self._client.log_artifact(self.run_id, str(file), name)
        self._client.set_tag(self.run_id, f"runner.checkpoint.{name.removeprefix(CHECKPOINTS)}", found.name)

    def model(self, path: str, mark: str) -> None:
        """What mlflow.pytorch.save_model has written to `path`, as Model.log of MLflow stores it: a logged model of the run."""
        from mlflow.entities import LoggedModelOutput
        from mlflow.models import Model

        folder = self._folder / path
        saved = Model.load(str(folder / "MLmodel"))  # before anything is created
        run = self._client.get_run(self.run_id)
        experiment_id = run.info.experiment_id
        twins = self._models(experiment_id, mark)
        model = (
            twins[0]
            if twins
            else self._client.create_logged_model(
                experiment_id, "model", self.run_id, {MARK: mark}, run.data.params
            )
        )
        saved.model_id = saved.model_uuid = model.model_id
        saved.run_id, saved.artifact_path = self.run_id, model.artifact_location
        saved.save(str(folder / "MLmodel"))
        self._client.log_model_artifacts(model.model_id, str(folder))
        if model.model_id not in self._outputs():
            self._client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step=0)])
        self._client.finalize_logged_model(model.model_id, "READY")
        for twin in self._models(experiment_id, mark):  # of a request that was thought to be lost
            if twin.model_id != model.model_id:
                self._client.delete_logged_model(twin.model_id)

    def event(self, at: str, text: str) -> None:
        """An artifact, for a tag has a limit; the whole of it each time, for an artifact cannot be appended to."""
        line, told = f"{at} {text}\n", read_text(self._client, str(self.run_id), EVENTS) or ""
        if line not in told:
            self._client.log_text(self.run_id, told + line, EVENTS)
        self._client.set_tag(self.run_id, LAST_EVENT, text[:MAX_NOTE])

    def status(self, status: str, error: str | None, end: int, only_if_running: bool = False) -> None:
        """`end`: ms since 1970."""
        run = self._client.get_run(self.run_id)
        if only_if_running and run.info.status != "RUNNING":
            return
        self._client.set_terminated(self.run_id, status, end)  # first: it matters more than the reason
        if error:
            self._client.set_tag(self.run_id, ERROR, error[:MAX_NOTE])
        if self.was_put_off:  # a request that was thought to be lost may have created the run once more
            for twin in self._twins(run.info.experiment_id, run.data.tags.get(MARK, "")):
                if twin != self.run_id:
                    self._client.delete_run(twin)

    def _experiment_id(self, name: str, location: str | None) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except MlflowException:  # another run was faster
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _twins(self, experiment_id: str, mark: str) -> list[str]:
        found = self._client.search_runs([experiment_id], f"tags.`{MARK}` = '{mark}'")
        return sorted(str(run.info.run_id) for run in found)

    def _models(self, experiment_id: str, mark: str) -> list[Any]:
        found = self._client.search_logged_models([experiment_id], f"source_run_id = '{self.run_id}'")
        return sorted((each for each in found if each.tags.get(MARK) == mark), key=lambda each: each.model_id)

    def _outputs(self) -> set[str]:
        outputs = self._client.get_run(self.run_id).outputs
        return {each.model_id for each in outputs.model_outputs} if outputs else set()


def _arguments(entry: Entry) -> Entry:
    return {key: value for key, value in entry.items() if key != "kind"}


def _parent_id(parent: str) -> str | None:
    """None where it will never be. Raises OutageError while it is not there."""
    if not Path(parent).is_absolute():
        return parent
    address = Address.read(Path(parent))
    if address is None:
        return None
    if address.run_id is None:
        raise OutageError("the run of its multirun is not there yet")
    return address.run_id


def is_outage(error: BaseException) -> bool:
    """Whether it would go well later: no connection, a timeout, HTTP 5xx or 429, a locked database."""
    import requests
    import urllib3
    from mlflow.exceptions import MlflowException

    if isinstance(error, OutageError):
        return True
    if isinstance(error, MlflowException):
        status = error.get_http_status_code()
        return bool(status >= 500 or status == 429)
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return bool(error.response.status_code >= 500 or error.response.status_code == 429)
    lost = (
        ConnectionError,
        TimeoutError,
        requests.ConnectionError,
        requests.Timeout,
        urllib3.exceptions.HTTPError,
    )
    cause: BaseException | None = error
    while cause is not None:  # clients of cloud stores wrap it in their own types
        if isinstance(cause, lost):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def reason(error: BaseException) -> str:
    """In a few words, where MLflow's message goes on about its settings."""
    said = str(error)
    for words in (
        "Connection refused",
        "timed out",
        "database is locked",
        "Connection reset",
        "Connection broken",
        "Response ended prematurely",
        "Remote end closed",
        "Broken pipe",
    ):
        if words in said:
            return words
    return first_line(error)[:200]
