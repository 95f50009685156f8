"""`python -m runner sync`: what earlier runs have left is delivered, or said to be left."""

import io

import pytest
from mlflow import MlflowClient
from rich.console import Console

from runner.errors import ConfigError
from runner.recording import DRIVER_LOST, deliver_earlier, left
from runner.report.console import Screen
from runner.run_folder import RunFile, locked, read_result, write_result
from runner.schema import Tracking
from runner.tracking import Outcome, open_record
from runner.tracking.spool import DRIVER, RANK_0, Address, Spool
from runner.verbs.sync import sync

NOT_THERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """URI of one store for this file: creating it takes seconds."""
    outputs = tmp_path_factory.mktemp("store")
    record = open_record(Tracking(), outputs, outputs / "first", "first")
    record.finish("FINISHED")
    assert record.close() == Outcome()
    return record.uri


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(here, name, uri, status="FINISHED"):
    """A run's folder whose spools were never delivered; without a status its driver was killed."""
    folder = here / "outputs" / name
    Address(uri, None, was_put_off=True).write(folder)
    driver, rank_0 = Spool(folder, DRIVER), Spool(folder, RANK_0)
    creation = {
        "experiment": "runner",
        "location": None,
        "name": name,
        "parent": None,
        "start": 5,
        "mark": name,
    }
    driver.append({"kind": "create", **creation})
    rank_0.append({"kind": "metrics", "step": 1, "milliseconds": 1000, "metrics": {"loss": 0.5}})
    RunFile(None, uri, "", "", [], str(here), [], "2026").write(folder)
    if status:
        driver.append({"kind": "status", "status": status, "error": None, "end": 6})
        write_result(folder, {"run_id": None, "status": status})
    return folder


def synced(*arguments):
    """Exit code and lines of the command."""
    output = io.StringIO()
    code = sync(list(arguments), Screen(Console(file=output, highlight=False, soft_wrap=True)))
    return code, output.getvalue().splitlines()


def test_what_is_left_is_delivered_and_the_folder_learns_the_run_s_id(here, store):
    folder = run_of(here, "runs/2026/a", store)
    assert synced() == (0, ["outputs/runs/2026/a: everything is in MLflow"])
    run_id = RunFile.read(folder).run_id
    assert read_result(folder) == {"run_id": run_id, "status": "FINISHED"}
    run = MlflowClient(store).get_run(run_id)
    assert (run.info.status, run.info.start_time, run.data.metrics) == ("FINISHED", 5, {"loss": 0.5})
    assert synced() == (0, ["everything is in MLflow"])


def test_a_run_whose_driver_was_killed_in_an_outage_has_failed(here, store):
    folder = run_of(here, "runs/2026/killed", store, status="")
    assert synced() == (0, ["everything is in MLflow"])
    assert read_result(folder)["error"] == DRIVER_LOST
    run = MlflowClient(store).get_run(RunFile.read(folder).run_id)
    assert (run.info.status, run.data.metrics) == ("FAILED", {"loss": 0.5})


def test_where_a_store_does_not_answer_a_line_says_so_and_the_others_are_delivered(here, store):
    away, there = run_of(here, "runs/2026/away", NOT_THERE), run_of(here, "runs/2026/there", store)
    code, lines = synced()
    assert (code, lines) == (
        1,
        [
            f"outputs/runs/2026/away: not yet: MLflow at {NOT_THERE} does not answer (Connection refused)",
            "outputs/runs/2026/there: everything is in MLflow",
        ],
    )
    assert left(here / "outputs") == [away]
    assert RunFile.read(there).run_id


def test_a_run_that_is_being_trained_is_left_alone(here, store):
    folder, said = run_of(here, "multiruns/2026/sweep/0", store), []
    with locked(folder, "rank-0.lock"):
        assert synced() == (1, ["outputs/multiruns/2026/sweep/0: not yet: it is still being trained"])
        deliver_earlier(here / "outputs", said.append)
        assert left(here / "outputs") == [folder]
    assert said == []
    deliver_earlier(here / "outputs", said.append)
    assert said == ["outputs/multiruns/2026/sweep/0: everything is in MLflow now"]
    assert left(here / "outputs") == []


def test_what_mlflow_refuses_is_said(here, store):
    folder = run_of(here, "runs/2026/refused", store)
    Spool(folder, RANK_0).append({"kind": "metrics", "step": 1, "milliseconds": 1, "metrics": {"a[b]": 1.0}})
    code, (line,) = synced()
    assert code == 1
    assert line.startswith(
        "outputs/runs/2026/refused: not yet: MLflow refused a part of it for good: Invalid value"
    )


def test_one_run_may_be_named_wherever_it_is(here, store):
    folder = run_of(here, "../elsewhere", store)
    assert synced(f"run_dir={folder}") == (0, ["elsewhere: everything is in MLflow"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("model=mlp", "sync: model=mlp is no argument of it; type"),
        ("run_dir=none", "run_dir=none: not the folder of"),
    ],
)
def test_other_arguments_are_refused(argument, said):
    with pytest.raises(ConfigError, match=said):
        synced(argument)
