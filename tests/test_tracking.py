"""A real MLflow on SQLite: what arrives in a run, once, under which names, and what goes wrong out loud."""

import threading
from pathlib import Path
from urllib.parse import urlparse

import pytest
import torch

from models.linear import Linear
from runner.schema import Tracking
from runner.tracking import Measured, Outcome, open_record
from runner.tracking.mlflow import MlflowTracker, TrackingError


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One store for this file: creating it takes seconds."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture
def record(outputs, tmp_path):
    return open_record(Tracking(), outputs, tmp_path / "run", "a run")


@pytest.fixture
def tracker(record, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    return MlflowTracker(tmp_path / "run", record.uri, record.run_id, flush_seconds=0.05)


def client_of(record):
    from mlflow import MlflowClient

    assert record.close() == Outcome()
    return MlflowClient(record.uri)


def read(record):
    return client_of(record).get_run(record.run_id)


def history(record, key):
    return sorted(
        (metric.step, metric.value) for metric in client_of(record).get_metric_history(record.run_id, key)
    )


def artifacts(record, folder=None):
    return sorted(found.path for found in client_of(record).list_artifacts(record.run_id, folder))


def content(record, path):
    return Path(urlparse(read(record).info.artifact_uri).path, path).read_text()


def test_a_run_is_created_running_in_the_default_experiment_and_ended(record, outputs):
    run = read(record)
    assert (run.info.status, run.info.run_name) == ("RUNNING", "a run")
    assert client_of(record).get_experiment(run.info.experiment_id).name == "runner"
    assert run.info.artifact_uri.startswith((outputs / "artifacts").as_uri())
    record.finish("KILLED")
    assert read(record).info.status == "KILLED"


def test_a_child_run_carries_its_parent(outputs, record, tmp_path):
    child = open_record(Tracking(), outputs, tmp_path / "child", "child", parent=record.run_id)
    assert read(child).data.tags["mlflow.parentRunId"] == record.run_id


def test_params_of_any_number_length_and_key_arrive(record, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")  # MLflow then refuses what is too long
    params = {f"group.key{number}": number for number in range(250)}
    params |= {"long": "x" * 9000, "betas": [0.9, 0.999], "null": None, "a@b+c%d": 1, "λ/plan": "κ"}
    record.log_params(params)
    stored = read(record).data.params
    assert len(stored) == 255
    assert stored["group.key249"] == "249"
    assert stored["long"] == "x" * 6000
    assert (stored["betas"], stored["null"]) == ("[0.9, 0.999]", "None")
    assert (stored["a_b_c_d"], stored["λ/plan"]) == ("1", "κ")


def test_results_of_a_run_as_a_whole_arrive(record):
    record.log_metrics({"study/exponent": 0.5, "study/exponent_low": -0.25})
    assert read(record).data.metrics == {"study/exponent": 0.5, "study/exponent_low": -0.25}
    record.log_metrics({})


def test_tags_texts_files_and_folders_arrive(record, tmp_path):
    record.set_tags({"runner.kind": "multirun", "mlflow.source.git.commit": "abc"})
    record.log_text("epochs: 3\n", "config.yaml")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("hello\n")
    (tmp_path / "result.json").write_text("{}")
    for path in (tmp_path / "logs", tmp_path / "result.json", tmp_path / "never-written"):
        record.log_artifact(path)
    tags = read(record).data.tags
    assert (tags["runner.kind"], tags["mlflow.source.git.commit"]) == ("multirun", "abc")
    assert artifacts(record) == ["config.yaml", "logs", "result.json"]
    assert content(record, "config.yaml") == "epochs: 3\n"
    assert content(record, "logs/rank-0.log") == "hello\n"


def test_metrics_arrive_exactly_once_at_their_steps(record, tracker):
    for step in range(1, 31):
        tracker.log_metrics(Measured(step, step, {"val/loss": 1 / step, "train/loss [mean]": step}))
    tracker.close()
    assert history(record, "val/loss") == [(step, 1 / step) for step in range(1, 31)]
    assert history(record, "train/loss _mean_") == [(step, float(step)) for step in range(1, 31)]


def test_a_metric_is_recorded_once_a_step_with_the_time_it_was_measured_at(record, tracker):
    for milliseconds, value in ((1000, 0.5), (2000, 0.25)):
        tracker.log_metrics(Measured(7, milliseconds, {"loss": value}))
    tracker.close()
    (stored,) = client_of(record).get_metric_history(record.run_id, "loss")
    assert (stored.step, stored.timestamp, stored.value) == (7, 1000, 0.5)


def test_more_metrics_than_a_batch_takes_arrive_exactly_once(record, tmp_path, monkeypatch):
    from runner.tracking import entries as module

    monkeypatch.setattr(module, "MAX_METRICS", 7)
    tracker = MlflowTracker(tmp_path / "run", record.uri, record.run_id, flush_seconds=10)
    tracker.log_metrics(Measured(1, 0, {f"m{number}": number for number in range(30)}))
    tracker.close()
    assert read(record).data.metrics == {f"m{number}": float(number) for number in range(30)}


def test_of_artifacts_that_wait_under_one_name_the_newest_is_uploaded(record, tmp_path):
    for name in ("step-00000001", "step-00000002"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state").write_text(name)
    tracker = MlflowTracker(tmp_path / "run", record.uri, record.run_id, flush_seconds=10)
    tracker.log_artifact(tmp_path / "step-00000001", "checkpoints/last")
    tracker.log_artifact(tmp_path / "step-00000001", "checkpoints/best")
    tracker.log_artifact(tmp_path / "step-00000002", "checkpoints/last")
    tracker.close()
    assert artifacts(record, "checkpoints") == ["checkpoints/best", "checkpoints/last"]
    assert content(record, "checkpoints/last/state") == "step-00000002"
    assert content(record, "checkpoints/best/state") == "step-00000001"


def test_a_checkpoint_is_named_by_a_tag_once_its_manifest_is_there_which_comes_last(
    record, tracker, tmp_path, monkeypatch
):
    from mlflow import MlflowClient

    calls, upload, tag = [], MlflowClient.log_artifact, MlflowClient.set_tag

    def log_artifact(self, run_id, path, name):
        calls.append((Path(path).name, name))
        upload(self, run_id, path, name)

    def set_tag(self, run_id, key, value):
        calls.append((key, value))
        tag(self, run_id, key, value)

    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    monkeypatch.setattr(MlflowClient, "set_tag", set_tag)
    path = tmp_path / "step-00000420"
    path.mkdir()
    for file in ("weights.safetensors", "manifest.json", "state.pt", "a.json"):
        (path / file).write_text(file)
    tracker.log_artifact(path, "checkpoints/best")
    tracker.close()
    files = ["a.json", "state.pt", "weights.safetensors", "manifest.json"]
    named = ("runner.checkpoint.best", "step-00000420")
    assert calls == [*((file, "checkpoints/best") for file in files), named]
    assert artifacts(record, "checkpoints/best") == [f"checkpoints/best/{file}" for file in sorted(files)]
    assert read(record).data.tags["runner.checkpoint.best"] == "step-00000420"


def test_a_checkpoint_pruned_while_it_is_uploaded_is_fine_where_a_newer_one_waits(
    record, tracker, tmp_path, monkeypatch
):
    from mlflow import MlflowClient

    monkeypatch.setattr("runner.tracking.delivery.UPLOAD_SECONDS", 0.0)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        for file in ("a", "manifest.json"):
            (tmp_path / name / file).write_text(name)
    upload = MlflowClient.log_artifact

    def log_artifact(self, run_id, path, name):
        upload(self, run_id, path, name)
        if (tmp_path / "old").exists():
            tracker.log_artifact(tmp_path / "new", "checkpoints/last")
            (tmp_path / "old").rename(tmp_path / "gone")

    monkeypatch.setattr(MlflowClient, "log_artifact", log_artifact)
    tracker.log_artifact(tmp_path / "old", "checkpoints/last")
    wait_until(lambda: not (tmp_path / "old").exists())
    tracker.close()
    assert content(record, "checkpoints/last/a") == content(record, "checkpoints/last/manifest.json") == "new"
    assert read(record).data.tags["runner.checkpoint.last"] == "new"


@pytest.mark.parametrize(("seconds", "uploads"), [(0.0, 3), (60.0, 2)])
def test_checkpoints_are_uploaded_so_often_and_the_last_one_always(
    record, tmp_path, monkeypatch, seconds, uploads
):
    from mlflow import MlflowClient

    uploaded, upload = [], MlflowClient.log_artifact
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr("runner.tracking.delivery.UPLOAD_SECONDS", seconds)
    monkeypatch.setattr(
        MlflowClient, "log_artifact", lambda *arguments: (uploaded.append(arguments), upload(*arguments))
    )
    tracker = MlflowTracker(tmp_path / "run", record.uri, record.run_id, flush_seconds=0.01)
    for number, name in enumerate(("old", "newer", "newest"), start=1):
        enough = min(number, uploads - 1)
        (tmp_path / name).mkdir()
        (tmp_path / name / "state").write_text(name)
        tracker.log_artifact(tmp_path / name, "checkpoints/last")
        wait_until(lambda enough=enough: len(uploaded) >= enough)
    tracker.close()
    assert len(uploaded) == uploads
    assert content(record, "checkpoints/last/state") == "newest"


def wait_until(condition):
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    pytest.fail("did not come true")


def test_a_checkpoint_pruned_before_its_upload_is_an_error_at_close(record, tracker, tmp_path):
    tracker.log_artifact(tmp_path / "pruned", "checkpoints/last")
    with pytest.raises(TrackingError, match=r"did not take everything: .*pruned"):
        tracker.close()


def test_what_mlflow_refuses_in_the_background_surfaces_at_close(record, tmp_path):
    tracker = MlflowTracker(tmp_path / "other", record.uri, "0" * 32, flush_seconds=0.01)
    tracker.log_metrics(Measured(1, 0, {"loss": 1.0}))
    with pytest.raises(TrackingError) as raised:
        tracker.close()
    assert str(raised.value).startswith(f"MLflow at {record.uri} did not take everything: ")
    assert "0" * 32 in str(raised.value)
    assert "\n" not in str(raised.value)


def models_of(record):
    """The run's stored models: (status, a function of rows)."""
    import mlflow

    mlflow.set_tracking_uri(record.uri)
    found = mlflow.search_logged_models(
        [read(record).info.experiment_id], f"source_run_id = '{record.run_id}'", output_format="list"
    )
    ready = [model for model in found if model.status == "READY"]
    return [mlflow.pyfunc.load_model(model.model_uri).predict for model in ready]


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")  # of MLflow's own classes
def test_the_logged_model_loads_and_predicts(record, tracker, capsys):
    import mlflow

    model, rows = Linear(3, 2), torch.arange(12.0).reshape(4, 3)
    expected = model(rows).detach()
    tracker.log_model(model, rows[:2])
    tracker.close()
    assert "pickle" not in capsys.readouterr().out
    (predict,) = models_of(record)
    torch.testing.assert_close(torch.from_numpy(predict(rows.numpy())), expected)
    assert read(record).info.status == "RUNNING"  # the driver alone ends the run
    assert mlflow.active_run() is None


class Branching(torch.nn.Module):
    """A model that torch.export cannot trace."""

    def forward(self, inputs):
        return inputs if inputs.sum() > 0 else -inputs


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred:UserWarning")
def test_a_model_that_cannot_be_exported_is_stored_all_the_same(record, tracker, capfd):
    rows = torch.ones(2, 3)
    tracker.log_model(Branching(), rows)
    tracker.close()
    assert "the model cannot be exported (" in capfd.readouterr().out
    (predict,) = models_of(record)
    torch.testing.assert_close(torch.from_numpy(predict(-rows.numpy())), rows)
