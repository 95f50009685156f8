"""A user's model, dataset and configs outside the checkout; their output, their errors, their sweeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient

from tests.end_to_end.conftest import Finished

MINE = ("--config-dir", "configs", "experiment=mine")


def test_it_trains_without_a_change_to_the_checkout(project: Path, command: Callable[..., Finished]) -> None:
    done = command(*MINE, "tracking=none")
    assert done.code == 0, done.stderr
    (result,) = done.results()
    assert result["metrics"]["epoch"] == 2
    log = (result["folder"] / "logs" / "rank-1.log").read_text().splitlines()
    assert log == ["built with width 4", "a line from below Python"]
    assert done.stdout.splitlines().count("built with width 4") == 1  # rank 0's alone is on screen


def test_a_multirun_goes_on_after_a_failed_job_whose_error_is_reported_once(
    project: Path, command: Callable[..., Finished]
) -> None:
    done = command("--multirun", *MINE, "model.fail_on_rank=1,null")
    assert done.code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"error: job 0 (model.fail_on_rank=1): rank 1: ValueError: the sky fell ({project}/models/tanh.py:14; full trace in "
    )
    results = done.results()
    assert [result["status"] for result in results] == ["FAILED", "FINISHED"]
    assert "the sky fell" in (results[0]["folder"] / "logs" / "rank-1.log").read_text()
    client = MlflowClient(f"sqlite:///{project}/outputs/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "runner"]
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if run.data.tags.get("runner.kind") == "multirun"]
    children = {
        run.info.run_id for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    }
    assert children == {result["run_id"] for result in results}
    assert parent.info.status == client.get_run(results[0]["run_id"]).info.status == "FAILED"
    *_, best, count, failed, page = done.stdout.splitlines()
    assert best.split()[:4] == ["1", "1", "0.6978", "null"]
    assert count == "2 jobs: 1 finished, 1 failed"
    assert failed.startswith("job 0 FAILED: rank 1: ValueError: the sky fell")
    assert (project / page.removeprefix("page ")).read_text().startswith("<!DOCTYPE html>")
