"""Runs of earlier commands: taken up again, read, and ended where their driver is gone."""

import re
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.errors import ConfigError, PreflightError
from runner.schema import Backend, Tracking
from runner.tracking import NullRecord, Outcome, open_record, reopen_record
from runner.tracking.earlier import stored_run
from runner.tracking.left_over import deliver_left, end_lost_run

NO_RUN = "0" * 32


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One store for this file: creating it takes seconds."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def record(outputs, tmp_path):
    return open_record(Tracking(), outputs, tmp_path / "run", "a run")


def run_of(record):
    assert record.close() == Outcome()
    return MlflowClient(record.uri).get_run(record.run_id)


def events(record, tmp_path):
    assert record.close() == Outcome()
    path = MlflowClient(record.uri).download_artifacts(record.run_id, "events.txt", str(tmp_path))
    return [line.partition(" ") for line in Path(path).read_text().splitlines()]


def test_a_run_that_failed_says_why_in_a_tag(record):
    record.finish("FAILED", "rank 1: ValueError: " + "x" * 600)
    run = run_of(record)
    assert run.info.status == "FAILED"
    assert run.data.tags["runner.error"] == "rank 1: ValueError: " + "x" * 480


def test_a_run_that_goes_on_is_running_and_its_error_becomes_an_event(record, outputs, tmp_path):
    record.log_event("rank 1 was lost")
    record.finish("FAILED", "driver lost")
    record.close()
    again = reopen_record(Tracking(), outputs, tmp_path / "run", record.run_id)
    assert (again.run_id, again.uri) == (record.run_id, record.uri)
    assert run_of(again).info.status == "RUNNING"
    assert "runner.error" not in run_of(again).data.tags
    again.log_event("resumed from\n step-00000420")
    again.finish("FINISHED")
    run, told = run_of(again), events(again, tmp_path)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "a run"
    assert run.info.end_time >= run.info.start_time
    assert [text for _, _, text in told] == [
        "rank 1 was lost",
        "FAILED: driver lost",
        "resumed from step-00000420",
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time) for time, _, _ in told)
    assert run.data.tags["runner.last_event"] == "resumed from step-00000420"


def test_more_events_than_a_tag_could_hold_are_all_there(record, tmp_path):
    for number in range(12):
        record.log_event(f"{number} " + "x" * 1000)
    assert [text for _, _, text in events(record, tmp_path)] == [f"{n} " + "x" * 1000 for n in range(12)]
    assert run_of(record).data.tags["runner.last_event"] == "11 " + "x" * 497


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (
            "sqlite:///{outputs}/mlflow.db",
            "the store {uri} cannot take it up again (Run with id={run} not found",
        ),
        ("sqlite:///{outputs}/none.db", "there is no store {uri}; type tracking.uri=…"),
    ],
)
def test_a_run_that_is_not_there_is_not_taken_up_again(record, outputs, tmp_path, store, said):
    uri = store.format(outputs=outputs)
    with pytest.raises(ConfigError) as refused:
        reopen_record(Tracking(uri=uri), outputs, tmp_path, NO_RUN)
    assert str(refused.value).startswith(f"run_id={NO_RUN}: " + said.format(uri=uri, run=NO_RUN))
    assert "\n" not in str(refused.value)
    assert not (outputs / "none.db").exists()


def test_a_deleted_run_is_not_taken_up_again(record, outputs, tmp_path):
    MlflowClient(record.uri).delete_run(record.run_id)
    with pytest.raises(ConfigError, match="must be in the 'active' state"):
        reopen_record(Tracking(), outputs, tmp_path, record.run_id)


def test_disabled_tracking_takes_nothing_up(record, outputs, tmp_path):
    assert isinstance(
        reopen_record(Tracking(backend=Backend.none), outputs, tmp_path, record.run_id), NullRecord
    )
    assert isinstance(
        reopen_record(Tracking(), outputs, tmp_path, None), NullRecord
    )  # it was trained without a store
    NullRecord().log_event("nothing happens")
    NullRecord().finish("FAILED", "nothing happens")


def lost(folder, uri, run_id, error="driver lost"):
    end_lost_run(folder, uri, run_id, error)
    return deliver_left(folder)


def test_a_run_whose_driver_is_gone_is_ended_once(record, tmp_path):
    folder = tmp_path / "gone"
    assert lost(folder, record.uri, record.run_id) == Outcome()
    run = run_of(record)
    assert (run.info.status, run.data.tags["runner.error"]) == ("FAILED", "driver lost")
    assert run.info.end_time
    assert lost(folder, record.uri, record.run_id, "another reason") == Outcome()
    assert run_of(record).data.tags["runner.error"] == "driver lost"
    assert not list(folder.iterdir())


def test_a_run_that_ended_or_never_was_is_left_alone(record, outputs, tmp_path):
    record.finish("FINISHED")
    assert run_of(record).info.status == "FINISHED"
    assert lost(tmp_path / "gone", record.uri, record.run_id) == Outcome()
    assert run_of(record).info.status == "FINISHED"
    assert "runner.error" not in run_of(record).data.tags
    (said,) = lost(tmp_path / "gone", record.uri, NO_RUN).refused
    assert said.startswith(f"Run with id={NO_RUN} not found")
    none = f"sqlite:///{outputs}/none.db"
    assert lost(tmp_path / "gone", none, NO_RUN) == Outcome(f"there is no store {none}")
    assert not (outputs / "none.db").exists()


def test_a_server_that_is_gone_is_told_at_once(tmp_path):
    with pytest.raises(PreflightError, match=r"^tracking.uri=http://127.0.0.1:9: nothing answers there"):
        stored_run("http://127.0.0.1:9", NO_RUN)


def test_a_stored_run_is_read_back(record):
    for name in ("config.yaml", "launch.json", "git.diff"):
        record.log_text(f"the text of {name}: κ\n", name)
    record.set_tags({"runner.run_dir": "/a/b"})
    record.finish("KILLED")
    record.close()
    run = stored_run(record.uri, record.run_id)
    assert (run.run_id, run.status, run.tags["runner.run_dir"]) == (record.run_id, "KILLED", "/a/b")
    assert run.config_yaml == "the text of config.yaml: κ\n"
    assert run.files == {
        "config.yaml": run.config_yaml,
        "launch.json": "the text of launch.json: κ\n",
    }


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (None, "without a tracking store there are no runs; type tracking=mlflow"),
        ("sqlite:////nowhere/x.db", "there is no store sqlite:////nowhere/x.db; type tracking.uri=…"),
        ("{uri}", "the store {uri} does not have it (Run with id={run} not found)"),
    ],
)
def test_a_run_that_cannot_be_read_is_one_line(record, uri, said):
    with pytest.raises(ConfigError) as refused:
        stored_run(uri and uri.format(uri=record.uri), NO_RUN)
    assert str(refused.value).startswith(f"run_id={NO_RUN}: {said.format(uri=record.uri, run=NO_RUN)}")
    assert "\n" not in str(refused.value)


def test_a_run_that_somebody_else_made_is_refused(record):
    with pytest.raises(ConfigError, match=r"^resume=\w+: no run of runner: it has no artifact config.yaml$"):
        stored_run(record.uri, record.run_id, key="resume")
