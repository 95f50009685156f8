"""Sweeps in which jobs crash and the driver is killed: each job is trained once, what failed is listed."""

import json
import os
import signal
from pathlib import Path

import pytest
from mlflow import MlflowClient

STEPS = 28  # 4 epochs of 203 rows in batches of 32
FAULTS = {1: "raises", 2: "sigkill", 3: "nan_loss"}  # by job
SLOW = 5  # the driver is killed in it
FIRST_WIDTH = 8


def planted(jobs, sweep, slow):
    by_width = {FIRST_WIDTH + job: kind for job, kind in {**FAULTS, slow: "slow"}.items()}
    faults = ", ".join(f"{width}: {kind}" for width, kind in by_width.items())
    return (
        "--multirun",
        f"hydra.sweep.dir={sweep}",
        f"model.width=range({FIRST_WIDTH},{FIRST_WIDTH + jobs})",
        f"model.by_width={{{faults}}}",
        "model.folder=${hydra:runtime.output_dir}/fault",
        "model.rank=1",
        "model.at=9",
        "model.once=false",
        "model.seconds=0.15",
        "trainer.max_failures=0",
    )


def forwards(folder: Path) -> list[int]:
    """Those of rank 0, by process."""
    return [int(path.read_text()) for path in sorted(folder.glob("fault/rank-0-*"))]


@pytest.mark.parametrize("jobs", [7, pytest.param(64, marks=pytest.mark.faults)])
def test_a_sweep_with_three_crashes_and_a_killed_driver_goes_on(tmp_path, command, measure, jobs):
    measured = measure(24, f"{jobs} jobs of which 3 crash, SIGKILL of the driver")
    sweep, slow = tmp_path / "outputs" / "multiruns" / "faults" / "sweep", SLOW
    driver = command(tmp_path, sweep, *planted(jobs, sweep, slow))
    driver.until((sweep / str(slow) / "checkpoints" / "step-00000012").exists)
    driver.send(signal.SIGKILL)
    driver.process.wait()
    done = {int(path.parent.name) for path in sweep.glob("*/result.json")}
    interrupted = {int(path.parent.name) for path in sweep.glob("*/fault")} - done
    assert slow in interrupted
    assert (
        len(interrupted) <= max(1, (os.cpu_count() or 1) // 2) + 1
    )  # sessions, and one not written down yet
    again = command(tmp_path, sweep, *planted(jobs, sweep, slow))
    outcome = again.wait(240)
    assert outcome.code == 1, outcome.text

    results = {int(path.parent.name): json.loads(path.read_text()) for path in sweep.glob("*/result.json")}
    statuses = {job: result["status"] for job, result in results.items()}
    assert statuses == {job: "FAILED" if job in FAULTS else "FINISHED" for job in range(jobs)}
    once = set(range(jobs)) - set(FAULTS) - interrupted
    assert {job: forwards(sweep / str(job)) for job in once} == {job: [STEPS] for job in once}
    assert len(forwards(sweep / str(slow))) == 2
    assert 12 <= STEPS - min(forwards(sweep / str(slow))) < STEPS  # it went on from a checkpoint
    reasons = {
        1: "rank 1: ValueError: the sky fell",
        2: "rank 1 ended without a Python error (killed, out of memory or os._exit)",
        3: "the loss of rank 1 is not finite",
    }
    for job, reason in reasons.items():
        (line,) = [line for _, line in outcome.lines if line.startswith(f"job {job} FAILED: ")]
        assert reason in line
        assert f"{job}/logs/" in line
    assert f"{jobs} jobs: {jobs - 3} finished, 3 failed" in outcome.text

    client = MlflowClient(outcome.store)
    experiments = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=1000)
    (parent,) = [run for run in runs if run.data.tags.get("runner.kind") == "multirun"]
    assert parent.info.status == "FAILED"  # for its failed jobs
    assert "runner.error" not in parent.data.tags
    assert (
        "driver lost"
        in Path(client.download_artifacts(parent.info.run_id, "events.txt", tmp_path)).read_text()
    )
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(int(run.data.tags["runner.job"]) for run in children) == list(range(jobs))
    assert len(runs) == jobs + 1
    assert {run.info.run_id: run.info.status for run in children} == {
        result["run_id"]: result["status"] for result in results.values()
    }
    (taken_up,) = [run for run in children if run.data.tags["runner.job"] == str(slow)]
    history = client.get_metric_history(taken_up.info.run_id, "val/loss")
    assert [metric.step for metric in history] == [7, 14, 21, 28]
    measured.holds(f"{jobs - 3} finished, none trained twice, 3 listed with their reasons")
