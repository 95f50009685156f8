"""Rank 0 of a session leaves what it has recorded to the driver: nothing is lost, nothing is sent twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from mlflow import MlflowClient

from runner.schema import Tracking
from runner.tracking import Measured, Outcome, open_record
from runner.tracking.delivery import Delivery
from runner.tracking.left_over import has_left
from runner.tracking.mlflow import MlflowTracker
from runner.tracking.spool import RANK_0, Address, Spool

PATIENCE = 30.0


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One store for this file: creating it takes seconds."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def record(outputs, folder):
    return open_record(Tracking(), outputs, folder, "a job")


@pytest.fixture
def sent(monkeypatch):
    """The steps of all metrics that were sent to MLflow, each time that they were."""
    found, log_batch = [], MlflowClient.log_batch

    def send(client, run_id, metrics=(), **named):
        found.extend(metric.step for metric in metrics)
        return log_batch(client, run_id, metrics=metrics, **named)

    monkeypatch.setattr(MlflowClient, "log_batch", send)
    return found


def tracker_of(record, folder, every=0.001):
    return MlflowTracker(folder, record.uri, record.run_id, every)


def measured(step):
    return Measured(step, 1000 + step, {"loss": 1.0 / step})


def stored(record):
    metrics = MlflowClient(record.uri).get_metric_history(record.run_id, "loss")
    return sorted((metric.step, metric.timestamp, metric.value) for metric in metrics)


def all_of(steps):
    return [(step, 1000 + step, 1.0 / step) for step in steps]


def test_what_is_left_before_anything_was_sent_is_delivered_by_the_driver(record, folder, sent):
    tracker = tracker_of(record, folder)  # its first request would come after seconds
    for step in (1, 2, 3):
        tracker.log_metrics(measured(step))
    tracker.leave()
    assert sent == []
    assert Address.read(folder) == Address(record.uri, record.run_id)
    assert len(Spool(folder, RANK_0).pending()) == 3
    record.finish("FINISHED")
    record.take_over()
    assert record.close() == Outcome()
    assert stored(record) == all_of((1, 2, 3))
    assert sent == [1, 2, 3]
    assert not has_left(folder)
    assert MlflowClient(record.uri).get_run(record.run_id).info.status == "FINISHED"


def test_a_request_on_its_way_is_waited_for_and_not_repeated(record, folder, sent, monkeypatch):
    monkeypatch.setattr("runner.tracking.delivery.LINES", 2)  # of five lines: three requests
    begun, go, send = threading.Event(), threading.Event(), Delivery._send

    def slow(delivery, group):
        if group[0].entry["kind"] == "metrics":
            begun.set()
            assert go.wait(PATIENCE)
        return send(delivery, group)

    before = tracker_of(record, folder, every=PATIENCE)
    for step in range(1, 6):
        before.log_metrics(measured(step))
    before.leave()
    assert sent == []
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(Delivery, "_send", slow)
    tracker = tracker_of(record, folder)
    assert begun.wait(PATIENCE)
    with ThreadPoolExecutor(1) as rank:
        leaving = rank.submit(tracker.leave)
        assert tracker._delivery._given_up.wait(PATIENCE)
        assert not leaving.done()  # for MLflow may have taken it
        go.set()
        leaving.result(PATIENCE)
    assert sent == [1, 2]
    assert len(Spool(folder, RANK_0).pending()) == 3
    record.take_over()
    assert record.close() == Outcome()
    assert sent == [1, 2, 3, 4, 5]
    assert stored(record) == all_of(range(1, 6))


def test_the_driver_goes_on_while_later_requests_of_the_rank_are_never_sent(record, folder, sent):
    """Once left, not even what is written then is sent by the rank."""
    tracker = tracker_of(record, folder)
    tracker.leave()
    tracker.log_metrics(measured(7))
    assert sent == []
    record.take_over()
    assert record.close() == Outcome()
    assert stored(record) == all_of([7])


def test_in_an_outage_a_rank_leaves_at_once(folder, monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr("runner.tracking.delivery.FIRST_PAUSE", PATIENCE)
    asked = threading.Event()
    begin = Delivery._begin
    monkeypatch.setattr(Delivery, "_begin", lambda *arguments: (begin(*arguments), asked.set()))
    tracker = MlflowTracker(folder, "http://127.0.0.1:9", "0123", 0.001)
    tracker.log_metrics(measured(1))
    assert asked.wait(PATIENCE)
    tracker.leave()
    assert not tracker._delivery._thread.is_alive()
    assert Address.read(folder) == Address("http://127.0.0.1:9", "0123")
    assert len(Spool(folder, RANK_0).pending()) == 1
    assert has_left(folder)


def test_models_and_checkpoints_that_were_left_follow_too(record, folder):
    tracker = tracker_of(record, folder)
    (folder / "checkpoints/step-1").mkdir(parents=True)
    (folder / "checkpoints/step-1/manifest.json").write_text("{}")
    tracker.log_artifact(folder / "checkpoints/step-1", "checkpoints/last")
    tracker.leave()
    record.take_over()
    assert record.close() == Outcome()
    run = MlflowClient(record.uri).get_run(record.run_id)
    assert run.data.tags["runner.checkpoint.last"] == "step-1"
    assert not has_left(folder)
