"""A sweep's own run, and what earlier commands have left of it, in a real store."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.errors import ConfigError, PreflightError, RunnerError
from runner.run_folder import is_free, locked
from runner.schema import Backend, OnOutage, Tracking
from runner.sweep.parent import SWEEP, Parent, Store, folder_of
from runner.sweep.source import Trial
from runner.tracking import found as searches
from runner.tracking import open_record
from runner.tracking.found import find, history
from tests.fakes import make_experiment
from tests.sweeps import BASIS_OF_ALL, job_of

PROJECT = Path(__file__).resolve().parents[1]
HOLDER = """
import sys
from pathlib import Path
from runner.run_folder import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One store for this file: creating it takes seconds."""
    return tmp_path_factory.mktemp("outputs")


def refuse_to_say(line):
    raise AssertionError(line)


def opened(outputs, folder, name, store=None, settings=None, say=refuse_to_say):
    return Parent.open(make_experiment(settings), outputs, folder, store or Store(None), name, say)


def store_of(outputs, name, settings=None, say=refuse_to_say):
    return Store.open(make_experiment(settings), outputs, name, say)


def child(outputs, folder, parent, status="FINISHED", tags=None, metrics=None, error=None):
    """A job's run; returns its id."""
    record = open_record(Tracking(), outputs, folder, folder.name, parent)
    record.set_tags({"runner.status": status, "runner.basis": BASIS_OF_ALL, **(tags or {})})
    for step, values in enumerate(metrics or [], start=1):
        record.log_metrics(values, step)
    record.finish("KILLED" if status == "PRUNED" else status, error)
    record.close()
    return record.run_id


def run_of(record_or_parent, run_id=None):
    record = getattr(record_or_parent, "record", record_or_parent)
    return MlflowClient(record.uri).get_run(run_id or record.run_id)


def test_a_new_sweep_is_a_run_of_its_own_and_its_folder_its_own(outputs, tmp_path):
    folder = tmp_path / "day/time"
    parent = opened(outputs, folder, "n1", settings={"checkpoint.monitor": "val/mae"})
    assert not is_free(folder)
    assert parent.run_id == parent.record.run_id is not None
    parent.close("FINISHED", None)
    assert is_free(folder)
    run = run_of(parent)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "multirun time")
    expected = {
        "runner.kind": "multirun",
        "runner.run_dir": str(folder),
        "runner.monitor": "val/mae",
        "runner.mode": "min",
        SWEEP: "n1",
    }
    assert expected.items() <= run.data.tags.items()
    assert not (folder / "tracking").exists()  # everything is delivered


def test_the_same_command_again_goes_on_with_its_run_and_folder(outputs, tmp_path):
    first = opened(outputs, tmp_path / "first", "n2")
    first.close("KILLED", None)
    store = store_of(outputs, "n2")
    assert store.parent.run_id == first.run_id
    assert folder_of(store, tmp_path / "second") == tmp_path / "first"
    again = opened(outputs, folder_of(store, tmp_path / "second"), "n2", store)
    assert again.run_id == first.run_id
    assert run_of(again).info.status == "RUNNING"
    again.close("FINISHED", None)
    assert run_of(again).info.status == "FINISHED"
    assert store_of(outputs, "another").parent is None
    assert folder_of(store_of(outputs, "another"), tmp_path / "second") == tmp_path / "second"
    (tmp_path / "first/run.lock").unlink()
    (tmp_path / "first").rmdir()
    assert folder_of(store, tmp_path / "second") == tmp_path / "second"  # the earlier one is gone


def test_a_sweep_that_another_process_is_at_is_refused(outputs, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.sweep.parent.locked", lambda folder, seconds: locked(folder, seconds=0))
    folder = tmp_path / "sweep"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError) as refused:
            opened(outputs, folder, "n3")
        other.stdin.close()
    assert str(refused.value).startswith(f"run {folder} is still being trained by process {other.pid} on ")
    assert store_of(outputs, "n3").parent is None


def test_a_store_that_is_none_leaves_no_lock(tmp_path):
    (tmp_path / "no").write_text("a file")
    settings = {"tracking.uri": f"sqlite:///{tmp_path}/no/such/folder.db"}
    with pytest.raises(RunnerError, match="MLflow cannot be used"):
        opened(tmp_path, tmp_path / "sweep", "n", settings=settings)
    assert is_free(tmp_path / "sweep")


def test_without_a_store_there_is_nothing_to_know_and_nothing_to_record(tmp_path, outputs):
    none = {"tracking.backend": Backend.none}
    store = store_of(outputs, "n2", none)
    assert store == Store(None)
    assert store.runs(BASIS_OF_ALL) == store.trials("val/loss", True, False) == []
    parent = opened(outputs, tmp_path / "sweep", "n2", store, none)
    assert parent.run_id is None
    parent.close("FINISHED", None)
    assert store_of(outputs, "n2", {"sweep.cache": False}) == Store(None)


def test_a_store_that_does_not_answer_is_no_reason_not_to_train(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.tracking.delivery.CLOSING_SECONDS", 0.1)
    nobody = {"tracking.uri": "http://127.0.0.1:9", "tracking.on_outage": OnOutage.spool}
    said = []
    store = store_of(tmp_path, "n", nobody, said.append)
    assert store == Store(None)
    assert len(said) == 1
    assert said[0].startswith("what was done before is not known: the store does not answer (")
    folder = tmp_path / "sweep"
    parent = opened(tmp_path, folder, "n", store, nobody, said.append)
    assert parent.run_id == str(folder)  # until it has an id
    parent.close("FINISHED", 0.1)
    assert said[-1].endswith("type python -m runner sync")
    assert (folder / "tracking/driver.jsonl").exists()
    with pytest.raises(PreflightError):
        opened(tmp_path, tmp_path / "b", "n", settings={**nobody, "tracking.on_outage": OnOutage.refuse})


# What it has


@pytest.fixture(scope="module")
def swept(outputs, tmp_path_factory):
    """(the store's view, run ids by name) of a sweep with jobs that ended in every way."""
    folder = tmp_path_factory.mktemp("swept")
    parent = opened(outputs, folder / "sweep", "swept")

    def job(name, number, status, metrics=None, error=None, **tags):
        tags = {"runner.job": str(number), "runner.overrides": json.dumps([f"seed={number}"]), **tags}
        return child(outputs, folder / name, parent.run_id, status, tags, metrics, error)

    curve = [{"epoch": 0.5, "val/loss": 3.0}, {"epoch": 1.0, "val/loss": 2.0}, {"train/loss": 9.0}]
    ids = {
        "a": job("a", 0, "FINISHED", [*curve, {"best/val/loss": 2.0}]),
        "b1": job("b1", 1, "KILLED"),
        "b2": job("b2", 1, "PRUNED", [*curve[:1], {"best/val/loss": 3.0}]),  # tried again
        "c": job("c", 2, "FAILED", error="rank 0: ValueError: no"),
        "d": job("d", 3, "KILLED"),
        "e": job("e", 4, "FAILED", error="rank 1: step 3: the loss of rank 1 is not finite; type a lower lr"),
    }
    ids["f"] = job("f", 5, "FINISHED", [{"best/val/loss": 2.0}], **{"runner.cached": ids["a"]})
    child(outputs, folder / "other", parent.run_id)  # no job
    parent.close("FINISHED", None)
    return store_of(outputs, "swept"), ids


def test_the_jobs_of_a_sweep_are_found_newest_first(swept):
    store, ids = swept
    names = {run_id: name for name, run_id in ids.items()}
    assert [names.get(run.run_id, "other") for run in store.jobs] == [
        "other", "f", "e", "d", "c", "b2", "b1", "a",
    ]  # fmt: skip
    first = store.jobs[-1]
    assert (first.status, first.name, first.metrics["best/val/loss"]) == ("FINISHED", "a", 2.0)


def test_many_runs_are_asked_for_page_by_page(swept, monkeypatch):
    store, _ = swept
    monkeypatch.setattr(searches, "PAGE", 3)
    assert find(store.uri, {"mlflow.parentRunId": store.parent.run_id}) == store.jobs
    assert find(store.uri, {"mlflow.parentRunId": store.parent.run_id, "runner.job": "1"}) == [
        run for run in store.jobs if run.tags.get("runner.job") == "1"
    ]
    assert find(store.uri, {"runner.job": "it's none"}) == []


def test_asking_a_store_that_is_not_there_makes_none(tmp_path):
    assert find(f"sqlite:///{tmp_path}/mlflow.db", {"runner.job": "1"}) == []
    assert list(tmp_path.iterdir()) == []


def test_a_metric_s_values_by_epochs(swept):
    store, ids = swept
    assert history(store.uri, ids["a"], "val/loss") == {0.5: 3.0, 1.0: 2.0}
    assert history(store.uri, ids["a"], "none") == {}


def test_trials_are_the_newest_run_of_each_job(swept):
    store, _ = swept
    expected = [
        Trial(0, ("seed=0",), "FINISHED", 2.0, {0.5: 3.0, 1.0: 2.0}),
        Trial(1, ("seed=1",), "PRUNED", 3.0, {0.5: 3.0}),
        Trial(2, ("seed=2",), "FAILED", None, {}),
        Trial(3, ("seed=3",), None, None, {}),  # to be taken up again
        Trial(4, ("seed=4",), "FAILED", math.nan, {}),  # it diverged: the worst, not unknown
        Trial(5, ("seed=5",), "FINISHED", 2.0, {0.5: 3.0, 1.0: 2.0}),  # the curve of the run it stands for
    ]
    assert repr(store.trials("val/loss", with_values=True, retry_failed=False)) == repr(expected)
    without = store.trials("val/loss", with_values=False, retry_failed=True)
    assert [(each.status, each.values) for each in without] == [
        ("FINISHED", {}), ("PRUNED", {}), (None, {}), (None, {}), (None, {}), ("FINISHED", {}),
    ]  # fmt: skip


def test_runs_of_a_basis_are_asked_for_once(swept, monkeypatch):
    store, _ = swept
    runs = store.runs(BASIS_OF_ALL)
    assert {run.run_id for run in store.jobs} <= {run.run_id for run in runs}
    assert store.runs("another") == []
    monkeypatch.setattr("runner.sweep.parent.find", lambda *_: pytest.fail("asked again"))
    assert store.runs(BASIS_OF_ALL) is runs
    assert store.runs("another") == []


def test_a_job_that_is_not_run_again_has_the_earlier_result(swept, outputs, tmp_path):
    store, ids = swept
    parent = Parent(tmp_path, Reopened(store), refuse_to_say, outputs, None)
    earlier = {run.run_id: run for run in store.jobs}
    result = parent.earlier(with_earlier(tmp_path, earlier[ids["a"]]))
    assert (result["run_id"], result["status"], result["best"]) == (ids["a"], "FINISHED", {"val/loss": 2.0})
    assert result["cached"] == ids["a"]
    failed = parent.earlier(with_earlier(tmp_path, earlier[ids["c"]]))
    assert (failed["status"], failed["error"]) == ("FAILED", "rank 0: ValueError: no")
    assert len(find(store.uri, {"mlflow.parentRunId": store.parent.run_id})) == len(store.jobs)


class Reopened:
    """The record of a sweep, as far as it is asked."""

    def __init__(self, store):
        self.uri, self.run_id = store.uri, store.parent.run_id


def with_earlier(folder, run):
    job = job_of(folder, 7, ("seed=7",))
    tags = {"runner.job": "7", "runner.identity": "the same"}
    return dataclasses.replace(job, earlier=run, request=dataclasses.replace(job.request, tags=tags))


@pytest.mark.parametrize(("status", "of_mlflow"), [("FINISHED", "FINISHED"), ("FAILED", "FAILED")])
def test_a_result_of_another_sweep_is_shown_by_a_child_of_this_one(outputs, tmp_path, status, of_mlflow):
    metrics = [{"epoch": 2.0, "val/loss": 0.5, "best/val/loss": 0.25, "seconds/total": 3.0}]
    error = "rank 0: ValueError: no" if status == "FAILED" else None
    other = child(outputs, tmp_path / "other", None, status, {"runner.mark": tmp_path.name}, metrics, error)
    (run,) = find(store_of(outputs, "n").uri, {"runner.mark": tmp_path.name})
    parent = opened(outputs, tmp_path / "sweep", tmp_path.name)
    result = parent.earlier(with_earlier(tmp_path / "sweep", run))
    assert (result["run_id"], result["status"], result["best"]) == (other, status, {"val/loss": 0.25})
    assert result.get("error") == error
    parent.close(status, None)
    (shown,) = find(parent.record.uri, {"mlflow.parentRunId": parent.run_id})
    assert (shown.status, shown.name) == (of_mlflow, "sweep-7")
    assert shown.metrics == {"epoch": 2.0, "best/val/loss": 0.25, "seconds/total": 3.0}
    expected = {"runner.cached": other, "runner.job": "7", "runner.status": status}
    assert expected.items() <= shown.tags.items()
    assert shown.tags.get("runner.error") == error
    assert not (tmp_path / "sweep/7/tracking").exists()
    (trial,) = store_of(outputs, tmp_path.name).trials("val/loss", False, False)
    assert (trial.number, trial.status, trial.value) == (7, status, 0.25)
