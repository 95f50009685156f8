"""What is delivered again, late, or by somebody else is in MLflow once, on SQLite; and what counts as an outage."""

import sqlite3
import threading
from contextlib import closing

import pytest
import requests
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException

from models.linear import Linear
from runner.errors import PreflightError
from runner.schema import OnOutage, Tracking
from runner.tracking import Measured, Outcome, open_record, reopen_record
from runner.tracking.artifacts import fetch_if_it_answers
from runner.tracking.delivery import Delivery
from runner.tracking.entries import is_outage, reason
from runner.tracking.left_over import deliver_left, end_lost_run, has_left
from runner.tracking.mlflow import MlflowTracker, TrackingError
from runner.tracking.spool import DRIVER, Spool
from runner.tracking.store import OutageError
from tests.mlflow_server import until

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred:UserWarning"
)  # of MLflow's own classes


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr("runner.tracking.delivery.CLOSING_SECONDS", 0.1)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def tracker_of(record, folder, history=None):
    return MlflowTracker(folder, record.uri, record.run_id, 0.01, history)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """A SQLite store for the tests that need no server."""
    outputs = tmp_path_factory.mktemp("outputs")
    record = open_record(Tracking(), outputs, outputs / "first", "first")
    record.finish("FINISHED")
    assert record.close() == Outcome()
    return outputs


class Lost:
    """MLflow's client does as it is told, and its answer is lost, the first time."""

    def __init__(self, monkeypatch, name):
        self.calls, method = 0, getattr(MlflowClient, name)

        def call(client, *arguments, **named):
            self.calls += 1
            found = method(client, *arguments, **named)
            if self.calls == 1:
                raise ConnectionError("Connection reset by peer")
            return found

        monkeypatch.setattr(MlflowClient, name, call)


def test_a_run_and_a_model_whose_creation_was_not_answered_are_there_once(outputs, folder, monkeypatch):
    lost = Lost(monkeypatch, "create_run")
    record = open_record(Tracking(on_outage=OnOutage.spool), outputs, folder, "twin")
    until(lambda: record.run_id)
    client = MlflowClient(record.uri)
    experiment = client.get_run(record.run_id).info.experiment_id
    twins = client.search_runs([experiment], "attributes.run_name = 'twin'")
    assert [run.info.run_id for run in twins] == [record.run_id]
    assert lost.calls == 1
    ghost = client.create_run(
        experiment, tags=twins[0].data.tags
    ).info.run_id  # a request that was worked off late
    record.finish("FINISHED")
    assert record.close() == Outcome()
    assert client.get_run(ghost).info.lifecycle_stage == "deleted"

    lost = Lost(monkeypatch, "create_logged_model")
    tracker = tracker_of(record, folder)
    tracker.log_model(Linear(3, 2), torch.ones(2, 3))
    until(lambda: lost.calls)
    tracker.close()
    if has_left(folder):
        assert deliver_left(folder) == Outcome()
    models = client.search_logged_models([experiment], f"source_run_id = '{record.run_id}'")
    assert [model.status for model in models] == ["READY"]


def test_what_mlflow_refuses_is_told_and_does_not_hold_up_the_rest(outputs, folder):
    record = open_record(Tracking(), outputs, folder, "refused")
    record.log_params({"a": 1})
    record.log_params({"a": 2})
    record.set_tags({"after": "1"})
    tracker = tracker_of(record, folder)
    tracker._metrics.append({"kind": "metrics", "step": 1, "milliseconds": 1, "metrics": {"a[b]": 1.0}})
    tracker.log_metrics(Measured(2, 2, {"loss": 0.5}))
    with pytest.raises(
        TrackingError, match=r"did not take everything: Invalid value \"a\[b\]\" for parameter"
    ):
        tracker.close()
    (refused,) = record.close().refused
    assert refused.startswith("Changing param values is not allowed")
    run = MlflowClient(record.uri).get_run(record.run_id)
    assert (run.data.tags["after"], run.data.metrics) == ("1", {"loss": 0.5})


def test_what_a_killed_rank_left_comes_before_what_is_measured_again(outputs, folder):
    record = open_record(Tracking(), outputs, folder, "killed rank")
    left = Spool(folder, "rank-0")
    for step in (1, 2, 3):
        values = {"loss": step / 10}
        left.append({"kind": "metrics", "step": step, "milliseconds": step, "metrics": values})
    tracker = tracker_of(record, folder, [Measured(1, 1, {"loss": 0.1})])
    for step in (2, 3, 4):
        tracker.log_metrics(Measured(step, 100 + step, {"loss": step / 10}))
    tracker.close()
    found = MlflowClient(record.uri).get_metric_history(record.run_id, "loss")
    assert [(each.step, each.timestamp) for each in found] == [(1, 1), (2, 2), (3, 3), (4, 104)]


def test_the_driver_delivers_what_a_rank_that_is_gone_has_left(outputs, folder):
    record = open_record(Tracking(), outputs, folder, "rank gone")
    Spool(folder, "rank-0").append(
        {"kind": "metrics", "step": 1, "milliseconds": 1, "metrics": {"loss": 0.5}}
    )
    record.finish("FAILED", "rank 0: ValueError: x")
    record.take_over()
    assert record.close() == Outcome()
    run = MlflowClient(record.uri).get_run(record.run_id)
    assert (run.info.status, run.data.metrics) == ("FAILED", {"loss": 0.5})
    assert not (folder / "tracking").exists()


def test_a_run_that_goes_on_delivers_its_own_first_and_a_refused_start_adds_nothing(
    outputs, folder, monkeypatch
):
    record = open_record(Tracking(), outputs, folder, "goes on")
    assert record.close() == Outcome()
    end_lost_run(folder, record.uri, record.run_id, "driver lost")
    before = [line.entry for line in Spool(folder, DRIVER).pending()]
    with monkeypatch.context() as patch:

        def out(delivery):
            raise OutageError("locked")

        patch.setattr(Delivery, "deliver", out)
        with pytest.raises(PreflightError, match="MLflow cannot be used"):
            reopen_record(Tracking(), outputs, folder, record.run_id)
    assert [line.entry for line in Spool(folder, DRIVER).pending()] == before
    again = reopen_record(Tracking(), outputs, folder, record.run_id)
    run = MlflowClient(record.uri).get_run(record.run_id)
    assert (run.info.status, "runner.error" in run.data.tags) == ("RUNNING", False)
    assert run.data.tags["runner.last_event"] == "FAILED: driver lost"
    again.finish("FINISHED")
    assert again.close() == Outcome()


def http_error(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(str(status), response=response)


def wrapped():
    try:
        try:
            raise requests.ConnectionError("Connection refused")
        except requests.ConnectionError as error:
            raise ValueError("a cloud store's own") from error
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MlflowException("API request to http://x failed with exception HTTPConnectionPool"), True),
        (
            RestException(
                {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "(sqlite3) database is locked"}
            ),
            True,
        ),
        (RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "bad key"}), False),
        (RestException({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no run"}), False),
        (http_error(503), True),
        (http_error(429), True),
        (http_error(404), False),
        (wrapped(), True),
        (ConnectionResetError(), True),
        (FileNotFoundError("pruned"), False),
        (OSError(28, "No space left on device"), False),
        (KeyError("a mistake"), False),
    ],
)
def test_what_counts_as_an_outage(error, expected):
    assert is_outage(error) is expected


def test_reasons_are_a_few_words():
    long = "API request to http://x failed with exception HTTPConnectionPool(...): [Errno 111] Connection refused"
    assert reason(MlflowException(long)) == "Connection refused"
    assert reason(MlflowException("x" * 900)) == "x" * 200


def test_a_locked_sqlite_file_is_an_outage_at_the_end(outputs, folder, monkeypatch):
    monkeypatch.setattr("runner.tracking.delivery.STUCK_SECONDS", 0.2)
    monkeypatch.setattr("runner.tracking.delivery.PROBE_SECONDS", 0.2)
    record = open_record(Tracking(), outputs, folder, "locked")
    with closing(sqlite3.connect(outputs / "mlflow.db", isolation_level=None)) as other:
        other.execute("begin exclusive")
        record.log_metrics({"loss": 0.5})
        record.finish("FINISHED")
        assert record.close() == Outcome("database is locked")
        other.execute("rollback")
    assert deliver_left(folder) == Outcome()
    run = MlflowClient(record.uri).get_run(record.run_id)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"loss": 0.5})
    assert len(MlflowClient(record.uri).get_metric_history(record.run_id, "loss")) == 1


def test_a_delivery_that_was_given_up_removes_and_says_nothing_when_its_answer_comes(
    outputs, folder, monkeypatch
):
    said, answered, method = [], threading.Event(), MlflowClient.log_batch

    def late(client, *arguments, **named):
        answered.wait(30)
        method(client, *arguments, **named)

    record = open_record(Tracking(), outputs, folder, "given up", None, said.append)
    assert record.close() == Outcome()
    monkeypatch.setattr(MlflowClient, "log_batch", late)
    record.set_tags({"first": "1"})
    record.set_tags({"second": "2"})
    assert record.close(0.2) == Outcome("no answer")
    answered.set()
    record._delivery._thread.join()
    assert [line.entry["tags"] for line in Spool(folder, DRIVER).pending()] == [
        {"first": "1"},
        {"second": "2"},
    ]
    assert record.close() == Outcome("no answer")
    assert said == []
    assert deliver_left(folder) == Outcome()
    run = MlflowClient(record.uri).get_run(record.run_id)
    assert (run.data.tags["first"], run.data.tags["second"]) == ("1", "2")


def test_a_rank_that_starts_again_in_an_outage_has_no_uploaded_checkpoint_and_says_so(
    outputs, folder, capsys
):
    assert list(fetch_if_it_answers("http://127.0.0.1:9", "0" * 32, folder)) == []
    said = "MLflow at http://127.0.0.1:9 does not answer (Connection refused), and no checkpoint is here: from the start"
    assert capsys.readouterr().out == f"{said}\n"
    with pytest.raises(MlflowException, match="not found"):  # no outage: the run is not there
        list(fetch_if_it_answers(f"sqlite:///{outputs}/mlflow.db", "0" * 32, folder))
