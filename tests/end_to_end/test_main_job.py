"""The main job as a user types it, and everything it leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from datasets.tables import digits
from models.mlp import MLP
from runner import checkpoint
from tests.conftest import environment
from tests.end_to_end.conftest import Finished


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("main_job")
    arguments = [sys.executable, "-m", "runner", "model=mlp", "scaling.num_workers=4"]
    done = subprocess.run(
        arguments, cwd=folder, env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def result(finished: Finished) -> dict[str, Any]:
    (only,) = finished.results()
    return only


@pytest.fixture(scope="module")
def client(finished: Finished) -> MlflowClient:
    return MlflowClient(f"sqlite:///{finished.folder}/outputs/mlflow.db")


def test_it_learns_the_digits(result: dict[str, Any]) -> None:
    assert result["status"] == "FINISHED"
    assert result["metrics"]["val/accuracy"] >= 0.95
    assert result["metrics"]["epoch"] == 20
    assert result["metrics"]["lr"] == pytest.approx(0.4)
    assert set(result["seconds"]) == {"check", "start", "launch", "training", "tracking", "total"}


def test_the_screen_shows_plan_epochs_and_what_to_type_next(
    finished: Finished, result: dict[str, Any]
) -> None:
    lines = finished.stdout.splitlines()
    assert lines[1:5] == [
        "batch 128 = 4 workers × 32 rows",
        "steps 240 = 20 epochs × 12; 1438 training rows, 359 validation rows",
        next(line for line in lines if line.startswith("resources 4 workers × ")),
        "lr 0.1 (base, batch 32) × 4 (linear: 128/32) = 0.4",
    ]
    assert f"mlflow run {result['run_id']}" in lines
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == [
        f"{n}/20" for n in range(1, 21)
    ]
    assert lines[-1].startswith("next: ")
    assert "ui --backend-store-uri sqlite:///outputs/mlflow.db" in lines[-1]


def test_nothing_of_ray_is_on_screen(finished: Finished) -> None:
    assert finished.stderr == ""
    noise = [
        line for line in finished.stdout.splitlines() if "ray" in line.lower() or "warning" in line.lower()
    ]
    assert noise == []


def test_every_metric_is_in_mlflow_once_an_epoch_by_its_step(
    client: MlflowClient, result: dict[str, Any]
) -> None:
    run = client.get_run(result["run_id"])
    assert run.info.status == "FINISHED"
    for key in ("train/loss", "val/loss", "val/accuracy", "lr", "throughput/samples_per_second"):
        history = client.get_metric_history(result["run_id"], key)
        first = [1] if key == "lr" else []  # it has a point at each step where it changes
        assert [point.step for point in history] == [*first, *range(12, 241, 12)], key
    last = client.get_metric_history(result["run_id"], "val/accuracy")[-1]
    assert last.value == pytest.approx(result["metrics"]["val/accuracy"])


def test_the_run_says_what_it_came_from(client: MlflowClient, result: dict[str, Any]) -> None:
    run = client.get_run(result["run_id"])
    parameters = run.data.params
    assert parameters["model._target_"] == "models.mlp.MLP"
    assert parameters["scaling.num_workers"] == "4"
    assert parameters["plan/global_batch_size"] == "128"
    assert parameters["plan/lr_multiplier"] == "4.0"
    names = {item.path for item in client.list_artifacts(result["run_id"])}
    assert {
        "config.yaml",
        "overrides.txt",
        "plan.txt",
        "environment.json",
        "result.json",
        "logs",
        "plots",
    } <= names
    overrides = Path(client.download_artifacts(result["run_id"], "overrides.txt")).read_text()
    assert overrides.split() == ["model=mlp", "scaling.num_workers=4"]
    environment = json.loads(
        Path(client.download_artifacts(result["run_id"], "environment.json")).read_text()
    )
    assert environment["packages"]["horovod"] == "0.28.1"
    logs = [item.path for item in client.list_artifacts(result["run_id"], "logs")]
    assert logs == [f"logs/rank-{rank}.log" for rank in range(4)]


def test_checkpoints_are_committed_and_uploaded(client: MlflowClient, result: dict[str, Any]) -> None:
    root = result["folder"] / "checkpoints"
    kept = [path.name for path in checkpoint.committed(root)]
    assert kept[-2:] == ["step-00000228", "step-00000240"]
    manifest, state = checkpoint.load(root / "step-00000240")
    assert (manifest["epoch"], manifest["step"]) == (20, 240)
    assert checkpoint.weights_sha256(state["weights"]) == result["weights_sha256"]
    uploaded = Path(client.download_artifacts(result["run_id"], "checkpoints/last"))
    assert checkpoint.verify(uploaded)["epoch"] == 20
    best = checkpoint.verify(Path(client.download_artifacts(result["run_id"], "checkpoints/best")))
    assert best["epoch"] == result["best"]["epoch"]
    assert best["metrics"]["val/loss"] == result["best"]["val/loss"]


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType")  # of MLflow, at its own import
def test_the_logged_model_is_the_trained_one(finished: Finished, result: dict[str, Any]) -> None:
    weights = load_file(result["folder"] / "checkpoints" / "step-00000240" / "weights.safetensors")
    model = MLP(64, 10)
    model.load_state_dict(weights)
    inputs, labels = digits()["val"]
    inputs = inputs.astype(np.float32)
    with torch.no_grad():
        expected = model(torch.from_numpy(inputs)).numpy()
    mlflow.set_tracking_uri(f"sqlite:///{finished.folder}/outputs/mlflow.db")
    loaded = mlflow.pyfunc.load_model(f"runs:/{result['run_id']}/model")
    assert loaded.metadata.signature.inputs.input_types()[0] == np.dtype("float32")
    predicted = loaded.predict(inputs)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5, atol=1e-5)
    accuracy = float((predicted.argmax(axis=1) == labels).mean())
    assert accuracy == pytest.approx(result["metrics"]["val/accuracy"])


def test_the_same_folder_is_not_used_twice(
    finished: Finished, result: dict[str, Any], command: Callable[..., Finished]
) -> None:
    again = command("tracking=none", f"hydra.run.dir={result['folder']}", folder=finished.folder)
    assert again.code == 2
    assert again.stderr.strip().endswith("holds a run already; type another folder")
