"""A store that does not answer, with a real server: nothing is lost, nothing is there twice, nobody waits for it."""

import re
import signal

import pytest
import requests
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException, RestException

from models.linear import Linear
from runner.errors import PreflightError
from runner.schema import OnOutage, Tracking
from runner.tracking import Measured, Outcome, check_store, open_record, reopen_record
from runner.tracking.delivery import Delivery
from runner.tracking.entries import is_outage, reason
from runner.tracking.left_over import deliver_left, end_lost_run, has_left
from runner.tracking.mlflow import MlflowTracker, TrackingError
from runner.tracking.spool import DRIVER, Address, Spool
from runner.tracking.store import OutageError
from tests.mlflow_server import server

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred:UserWarning"
)  # of MLflow's own classes


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """One server for this file; a test that ends it starts it again."""
    with server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr("runner.tracking.delivery.CLOSING_SECONDS", 0.1)
    monkeypatch.setattr("runner.tracking.delivery.STUCK_SECONDS", 0.2)
    monkeypatch.setattr("runner.tracking.delivery.PROBE_SECONDS", 0.3)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def settings(uri, on_outage=OnOutage.spool):
    return Tracking(uri=uri, on_outage=on_outage)


def tracker_of(record, folder, history=None):
    return MlflowTracker(folder, record.uri, record.run_id, 0.01, history)


def test_metrics_of_a_server_that_dies_and_comes_back_are_there_once_and_its_run_ends(running, folder, capfd):
    record = open_record(settings(running.uri), folder.parent, folder, "killed")
    assert record.run_id
    record.set_tags({"before": "1"})
    assert record.close() == Outcome()
    tracker = tracker_of(record, folder)
    tracker.log_metrics(Measured(1, 1000, {"loss": 0.5, "nan": float("nan")}))
    while len(running.rows(record.run_id)) < 2:
        pass
    running.kill()
    tracker.log_metrics(Measured(2, 2000, {"loss": 0.25}))
    tracker.log_model(Linear(3, 2), torch.ones(2, 3))
    tracker.close()
    record.set_tags({"after": "2"})
    record.finish("FINISHED")
    outcome = record.close()
    assert (outcome.outage, outcome.refused) == ("Connection refused", ())
    assert has_left(folder)
    (said,) = capfd.readouterr().out.splitlines()
    # The kill may have come in the middle of an answer.
    assert re.fullmatch(
        rf"MLflow at {running.uri} does not answer \((Connection refused|Connection reset|Remote end closed)\); "
        rf"metrics wait in {folder}/tracking and follow when it does",
        said,
    )

    running.start()
    assert deliver_left(folder) == Outcome()
    assert not list(folder.iterdir())
    run = MlflowClient(running.uri).get_run(record.run_id)
    assert (run.info.status, run.data.tags["before"], run.data.tags["after"]) == ("FINISHED", "1", "2")
    assert running.rows(record.run_id) == [
        ("loss", 1, 1000, 0.5),
        ("loss", 2, 2000, 0.25),
        ("nan", 1, 1000, 0.0),
    ]
    (model,) = run.outputs.model_outputs
    assert MlflowClient(running.uri).get_logged_model(model.model_id).status == "READY"


def test_what_a_stopped_server_works_off_when_it_goes_on_is_there_once(running, folder, capfd):
    record = open_record(settings(running.uri), folder.parent, folder, "stopped")
    assert record.close() == Outcome()
    tracker = tracker_of(record, folder)
    tracker.log_metrics(Measured(1, 1000, {"loss": 0.5}))
    while not running.rows(record.run_id):
        pass
    running.send(signal.SIGSTOP)
    tracker.log_metrics(Measured(2, 2000, {"loss": 0.25}))
    said = ""
    while "does not answer (timed out)" not in said:  # so the request was sent
        said += capfd.readouterr().out
    tracker.log_metrics(Measured(3, 3000, {"loss": 0.125}))
    running.send(signal.SIGCONT)
    tracker.close()
    assert running.rows(record.run_id) == [("loss", step, 1000 * step, 0.5**step) for step in (1, 2, 3)]
    assert f"MLflow at {running.uri} answers again" in capfd.readouterr().out


def test_the_store_itself_takes_an_equal_metric_once(running, folder):
    """Sending a line again depends on it."""
    record = open_record(settings(running.uri), folder.parent, folder, "equal")
    client = MlflowClient(running.uri)
    for _ in range(2):
        client.log_metric(record.run_id, "loss", 0.5, timestamp=1000, step=1)
    assert running.rows(record.run_id) == [("loss", 1, 1000, 0.5)]
    record.finish("FINISHED")
    assert record.close() == Outcome()


def test_down_at_the_start_is_refused_or_the_run_is_created_later_as_it_was(running, folder, tmp_path):
    parent, said, named = tmp_path / "multirun", [], []
    running.send(signal.SIGSTOP)
    try:
        for refuse in (check_store, lambda settings, outputs: open_record(settings, outputs, folder, "no")):
            with pytest.raises(
                PreflightError, match=r"no answer in .*; .*type tracking=none .*on_outage=spool to"
            ):
                refuse(settings(running.uri, OnOutage.refuse), tmp_path)
        assert not (folder / "tracking").exists()
        check_store(settings(running.uri), tmp_path)
        multirun = open_record(settings(running.uri), tmp_path, parent, "multirun")
        run = open_record(
            settings(running.uri), tmp_path, folder, "a run", str(parent), said.append, named.append
        )
        assert (multirun.run_id, run.run_id, run.uri) == (None, None, running.uri)
        tracker = MlflowTracker(folder, running.uri, None, 0.01)
        run.log_params({"a": 1})
        run.log_text("epochs: 3", "config.yaml")
        tracker.log_metrics(Measured(5, 5000, {"loss": 0.5}))
        (folder / "checkpoints" / "step-5").mkdir(parents=True)
        (folder / "checkpoints" / "step-5" / "manifest.json").write_text("{}")
        tracker.log_artifact(folder / "checkpoints" / "step-5", "checkpoints/last")
        tracker.close()
        for record in (run, multirun):
            record.finish("FINISHED")
            assert record.close().outage in ("no answer in 0.3 s", "timed out")
    finally:
        running.send(signal.SIGCONT)
    waits = f"this run waits in {folder}/tracking and follows when it does"
    assert said == [f"MLflow at {running.uri} does not answer (no answer in 0.3 s); {waits}"]
    start = Spool(folder, DRIVER).pending()[0].entry["start"]

    assert deliver_left(folder, named.append).outage == "the run of its multirun is not there yet"
    assert named == []
    assert deliver_left(parent) == deliver_left(folder, named.append) == Outcome()
    (run_id,) = named
    assert not has_left(folder)
    client, parent_id = MlflowClient(running.uri), Address.read(parent).run_id
    found = client.get_run(run_id)
    assert (found.info.run_name, found.info.start_time, found.info.status) == ("a run", start, "FINISHED")
    assert (found.data.params, found.data.tags["mlflow.parentRunId"]) == ({"a": "1"}, parent_id)
    assert found.data.tags["runner.checkpoint.last"] == "step-5"
    assert running.rows(run_id) == [("loss", 5, 5000, 0.5)]
    assert [each.path for each in client.list_artifacts(run_id)] == ["checkpoints", "config.yaml"]


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
    record = open_record(settings(None), outputs, folder, "twin")
    while not record.run_id:
        pass
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
    while lost.calls == 0:
        pass
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
