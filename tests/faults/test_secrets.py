"""A planted secret, wherever people put one, is in nothing that a command leaves: what it says, outputs/, MLflow, Ray."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.conftest import environment

CANARY = "canary0815"
CODE = """
import os

import torch
from datasets.tables import digits

def read(password, token, url, **rest):
    print("the driver has", password, token, url)
    return digits(**rest)

class Net(torch.nn.Linear):
    def __init__(self, in_features, num_classes, api_key, fails):
        super().__init__(in_features, num_classes)
        self.api_key, self.fails, self.forwards = api_key, fails, 0

    def forward(self, inputs):
        self.forwards += 1
        if self.forwards == 40:
            print("the worker has", self.api_key)
            os.system(f"echo a subprocess has {self.api_key}")
            if self.fails:
                raise ValueError(f"no login with {self.api_key}")
        return super().forward(inputs.flatten(1))
"""
DATASET = f"""
_target_: own.read
task: classification
val_fraction: 0.2
seed: ${{seed}}
password: {CANARY}-config
token: ${{oc.env:MY_TOKEN}}
url: https://me:{CANARY}-uri@example.org
"""
MODEL = """
_target_: own.Net
in_features: null
num_classes: null
api_key: null
fails: false
"""


@pytest.fixture
def short_folder():
    """Ray puts sockets into its folder, whose paths have a limit."""
    folder = Path(tempfile.mkdtemp(prefix="r"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(("model.fails=true",), id="a run that raises it"),
        pytest.param(
            (
                "-m",
                "model.fails=false,true",
                "hydra.sweep.subdir=${hydra.job.num}-${hydra.job.override_dirname}",
            ),
            id="a multirun",
            marks=pytest.mark.faults,
        ),
    ],
)
def test_no_secret_is_left_anywhere(tmp_path, short_folder, sweep):
    for name, text in (("own.py", CODE), ("c/dataset/own.yaml", DATASET), ("c/model/own.yaml", MODEL)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    line = [
        "--config-dir",
        "c",
        "dataset=own",
        "model=own",
        f"model.api_key={CANARY}-line",
        "trainer.epochs=2",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "runner", *line, "scaling.num_workers=2", *sweep],
        cwd=tmp_path,
        env={**environment(), "MY_TOKEN": f"{CANARY}-environment", "RAY_TMPDIR": str(short_folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "the driver has <secret> <secret> https://<secret>@example.org" in said
    assert "the worker has <secret>" in said
    assert "ValueError: no login with <secret> (" in said
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    runs = client.search_runs([found.experiment_id for found in client.search_experiments()])
    params = next(run.data.params for run in runs if run.info.status == "FAILED" and run.data.params)
    assert params["model.api_key"] == params["dataset.password"] == params["dataset.token"] == "<secret>"
    assert CANARY not in said
    assert CANARY not in repr(runs)
    assert list(short_folder.rglob("raylet.out"))
    for path in [*(tmp_path / "outputs").rglob("*"), *short_folder.rglob("*")]:
        assert CANARY not in str(path)
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path
