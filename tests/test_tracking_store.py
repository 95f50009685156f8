"""Which MLflow store and experiment a run goes to, and how a store comes to be."""

import json
import os
import subprocess
import sys

import pytest
from mlflow import MlflowClient

from runner.errors import ConfigError, RunnerError
from runner.schema import Backend, Tracking
from runner.tracking import NullRecord, NullTracker, Outcome, check_store, open_record, open_tracker
from runner.tracking.mlflow import clean
from runner.tracking.store import default_uri, tracking_uri
from tests.composed import CONF

# One process imports MLflow and forks; the children open the store at the same moment.
STARTER = """
import json, os, sys
from pathlib import Path
import mlflow
from runner.schema import Tracking
from runner.tracking import open_record

gate, go = os.pipe()
children = []
for number in range(3):
    answer, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(gate, 1)
        record = open_record(Tracking(), Path(sys.argv[1]), Path(sys.argv[1], str(number)), "started together")
        record.finish("FINISHED")
        record.close()
        os.write(tell, record.run_id.encode())
        os._exit(0)
    os.close(tell)
    children.append((pid, answer))
os.write(go, b"xxx")
print(json.dumps([[os.waitpid(pid, 0)[1], os.read(answer, 100).decode()] for pid, answer in children]))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One store for this file: creating it takes seconds."""
    outputs = tmp_path_factory.mktemp("outputs")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-c", STARTER, str(outputs)],
        cwd=CONF.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    (outputs / "started.json").write_text(done.stdout or done.stderr[-3000:])
    return outputs


def read(record):
    return MlflowClient(record.uri).get_run(record.run_id)


def test_three_processes_may_create_the_store_at_once(outputs):
    started = json.loads((outputs / "started.json").read_text())
    assert [status for status, _ in started] == [0, 0, 0]
    runs = {MlflowClient(default_uri(outputs)).get_run(run_id).info.run_id for _, run_id in started}
    assert len(runs) == 3


def test_the_store_is_the_config_s_else_the_environment_s_else_under_outputs(tmp_path, monkeypatch):
    outputs = tmp_path / "outputs"
    assert tracking_uri(Tracking(), outputs) == f"sqlite:///{outputs}/mlflow.db" == default_uri(outputs)
    assert outputs.is_dir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert tracking_uri(Tracking(), outputs) == "http://localhost:5000"
    assert tracking_uri(Tracking(uri="http://other"), outputs) == "http://other"


def test_a_relative_sqlite_path_is_made_absolute_and_others_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(Tracking(uri="sqlite:///my.db"), tmp_path) == f"sqlite:///{tmp_path}/my.db"
    for uri in ("sqlite:////abs/my.db", "postgresql://host/db", "databricks"):
        assert tracking_uri(Tracking(uri=uri), tmp_path) == uri


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "/data/mlruns", "file:mlruns", "file:///data/mlruns"])
def test_a_plain_folder_is_refused(tmp_path, uri):
    with pytest.raises(ConfigError) as refused:
        tracking_uri(Tracking(uri=uri), tmp_path)
    assert str(refused.value) == (
        f"tracking.uri={uri}: MLflow no longer writes to plain folders; type tracking.uri=sqlite:///mlflow.db"
    )


def test_the_experiment_is_the_config_s_else_the_environment_s(outputs, tmp_path, monkeypatch):
    def name_of(settings):
        record = open_record(settings, outputs, tmp_path, None)
        return MlflowClient(record.uri).get_experiment(read(record).info.experiment_id).name

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    assert name_of(Tracking()) == "from the environment"
    assert name_of(Tracking(experiment="from the config")) == "from the config"


def test_a_run_id_in_the_environment_takes_nothing_over(outputs, tmp_path, monkeypatch):
    record = open_record(Tracking(), outputs, tmp_path, None)
    monkeypatch.setenv("MLFLOW_RUN_ID", record.run_id)
    assert open_record(Tracking(), outputs, tmp_path / "other", None).run_id != record.run_id
    assert "MLFLOW_RUN_ID" not in os.environ


def test_a_store_that_cannot_be_used_is_one_line_with_a_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    uri = f"sqlite:///{tmp_path}/file/my.db"
    with pytest.raises(RunnerError) as refused:
        open_record(Tracking(uri=uri), tmp_path, tmp_path / "run", None)
    message = str(refused.value)
    assert message.startswith(f"tracking.uri={uri}: MLflow cannot be used (")
    assert message.endswith("); type tracking=none to train without it")
    assert "\n" not in message


def test_disabled_tracking_is_a_null_object(tmp_path):
    settings = Tracking(backend=Backend.none)
    record = open_record(settings, tmp_path / "outputs", tmp_path / "run", "x")
    assert isinstance(record, NullRecord)
    assert (record.run_id, record.uri) == (None, None)
    assert isinstance(open_tracker(settings, tmp_path, "sqlite:///x.db", "id"), NullTracker)
    assert isinstance(open_tracker(Tracking(), tmp_path, None, "id"), NullTracker)  # any rank but 0
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("key", "cleaned"), [("val/loss", "val/loss"), ("a[0]#1", "a_0__1"), ("a-b c.d:e", "a-b c.d:e")]
)
def test_keys_are_cleaned_of_what_mlflow_refuses(key, cleaned):
    assert clean(key) == cleaned


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://127.0.0.1:9", "nothing answers there (Connection refused)"),
        ("foo://x", "MLflow has no such store; type tracking.uri=sqlite:///mlflow.db"),
    ],
)
def test_a_store_that_cannot_be_one_is_refused_before_mlflow_is_asked(uri, said, tmp_path):
    with pytest.raises(RunnerError) as raised:
        check_store(Tracking(uri=uri), tmp_path)
    assert said in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_sqlite_store_of_the_user_s_is_created_where_he_names_it(tmp_path):
    uri = f"sqlite:///{tmp_path}/mine.db"
    record = open_record(Tracking(uri=uri), tmp_path / "outputs", tmp_path / "run", "first")
    assert MlflowClient(uri).get_run(record.run_id).info.run_name == "first"
    record.finish("FINISHED")
    assert record.close() == Outcome()
    assert not (tmp_path / "outputs").exists()
