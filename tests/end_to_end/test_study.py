"""The study on real workers: its axes cut down, its files and metrics on the multirun's run in a real store."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from PIL import Image

from runner import __main__ as door


@pytest.mark.soak  # four launches; what is put together, and how, tests/test_study*.py show in milliseconds
@pytest.mark.usefixtures("_warm_ray")
def test_a_study_is_a_multirun_by_itself_and_ends_on_its_parent_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    overrides = [
        "experiment=lr_scaling_study",
        "lr_scaling=sqrt,linear",
        "scaling.num_workers=1,2",
        "trainer.accumulation_steps=1",
        "optimizer.lr=0.00625",
        "seed=0",
        "trainer.epochs=1",
        "trainer.batch_size=8",
    ]
    assert door.run(overrides) == 0
    jobs = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/multiruns/*/*/*/result.json")]
    assert [job["status"] for job in jobs] == ["FINISHED"] * 4
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "runner"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if run.data.tags.get("runner.kind") == "multirun"]
    assert parent.info.status == "FINISHED"
    assert set(parent.data.metrics) == {"study/exponent"}  # a single seed has no interval
    assert parent.data.metrics["study/exponent"] in (pytest.approx(0.5), pytest.approx(1.0))
    files = {Path(found.path).name for found in client.list_artifacts(parent.info.run_id, "study")}
    assert files == {"table.txt", "table.csv", "trials.csv", "plot.png"}
    folder = Path(client.download_artifacts(parent.info.run_id, "study", str(tmp_path)))
    with Image.open(folder / "plot.png") as image:
        assert image.size == (840, 474)
    table = (folder / "table.txt").read_text()
    assert table in capsys.readouterr().out
    with (folder / "trials.csv").open() as file:
        trials = {(each["rule"], each["batch"]): each for each in csv.DictReader(file)}
    values = sorted(float(each["value"]) for each in trials.values())
    assert values == sorted(job["best"]["val/accuracy"] for job in jobs)
    # One worker is κ = 1, where all rules are the same training; two workers are no simulation.
    assert trials["sqrt", "8"]["value"] == trials["linear", "8"]["value"]
    assert f"8      1  1 × 8           {float(trials['sqrt', '8']['value']):.4f} ± n/a (1)" in table
    assert f"16     2  2 × 8           {float(trials['sqrt', '16']['value']):.4f} ± n/a (1)" in table
