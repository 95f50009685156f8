"""A store that does not answer, with a real server: nothing is lost, nothing is there twice, nobody waits for it."""

import re
import signal

import pytest
import torch
from mlflow import MlflowClient

from models.linear import Linear
from runner.errors import PreflightError
from runner.schema import OnOutage, Tracking
from runner.tracking import Measured, Outcome, check_store, open_record
from runner.tracking.left_over import deliver_left, has_left
from runner.tracking.mlflow import MlflowTracker
from runner.tracking.spool import DRIVER, Address, Spool
from tests.mlflow_server import server, until

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Any type hint is inferred:UserWarning"
)  # of MLflow's own classes


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def running(shared):
    """The one server of this file, running whatever the test before it did to it."""
    shared.ensure()
    return shared


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr("runner.tracking.delivery.CLOSING_SECONDS", 0.1)
    monkeypatch.setattr("runner.tracking.delivery.STUCK_SECONDS", 0.2)
    for seconds in ("delivery.PROBE_SECONDS", "record.PROBE_SECONDS", "store.ANSWER_SECONDS"):
        monkeypatch.setattr(f"runner.tracking.{seconds}", 0.3)
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
    until(lambda: len(running.rows(record.run_id)) == 2)
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
    # The kill may have come in the middle of an answer: its end can be missing in many ways.
    assert re.fullmatch(
        rf"MLflow at {running.uri} does not answer \([^()]+\); "
        rf"metrics wait in {folder}/tracking and follow when it does",
        said,
    )
    assert "API request" not in said

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
    until(lambda: running.rows(record.run_id))
    running.send(signal.SIGSTOP)
    tracker.log_metrics(Measured(2, 2000, {"loss": 0.25}))
    until(lambda: "does not answer (timed out)" in capfd.readouterr().out)  # so the request was sent
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
