"""Ctrl-C and SIGTERM, whatever the driver is doing: it ends in 10 s, with all its processes, and the run says KILLED."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time

import pytest
from mlflow import MlflowClient

from tests.faults.processes import gone

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SAID = {signal.SIGINT: "error: interrupted by Ctrl-C", signal.SIGTERM: "error: terminated by SIGTERM"}


def runs_of(folder):
    """Of the MLflow store in `folder`, if there is one by now."""
    path = folder / "outputs" / "mlflow.db"
    if not path.exists():
        return []
    client = MlflowClient(f"sqlite:///{path}")
    return client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])


def has_process(driver, name):
    return lambda: any(name in line.partition(" ")[0] for line in driver.family().values())


def moment_of(phase, driver):
    """Whether the driver is in that phase by now."""
    fault, checkpoints = driver.run_dir / "fault", driver.run_dir / "checkpoints"
    return {
        "check": (fault / "reading").exists,
        "start of Ray": has_process(driver, "gcs_server"),
        "start of Ray's node": has_process(driver, "raylet"),
        "launch": lambda: driver.says("starting the workers"),
        "workers": lambda: any(fault.glob("rank-*")),
        "training": (checkpoints / "step-00000003").exists,
    }[phase]


PHASES = ("check", "start of Ray", "start of Ray's node", "launch", "workers", "training")
IN_TEST = (signal.SIGTERM, "start of Ray's node")  # training: tests/end_to_end/test_ends.py


@pytest.mark.parametrize(
    ("number", "phase"),
    [
        pytest.param(*each, marks=[] if each == IN_TEST else pytest.mark.faults)
        for each in itertools.product(CODES, PHASES)
    ],
)
def test_a_signal_ends_the_driver_in_any_phase(tmp_path, command, measure, number, phase):
    measured = measure(13, f"{signal.Signals(number).name}, {phase}")
    run_dir = tmp_path / "outputs" / "runs" / "faults" / "run"
    slow = ["dataset.seconds=30"] if phase == "check" else ["model.kind=slow", "model.seconds=0.2"]
    folder = f"dataset.folder={run_dir}/fault"
    driver = command(tmp_path, run_dir, f"hydra.run.dir={run_dir}", folder, *slow)
    driver.until(moment_of(phase, driver))
    family = set(driver.family())
    moment = driver.send(number)
    outcome = driver.wait(30)
    measured.seconds("end of the command", outcome.ended - moment, 10)
    measured.seconds("all gone", gone(family | set(driver.family())), 10)
    assert outcome.code == CODES[number], outcome.text
    assert outcome.error == SAID[number].removeprefix("error: ")
    runs = runs_of(tmp_path)
    assert {run.info.status for run in runs} <= {"KILLED"}
    if phase in ("launch", "workers", "training"):
        assert len(runs) == 1
        assert outcome.result["status"] == "KILLED"
        measured.holds("KILLED")


@pytest.mark.faults
@pytest.mark.parametrize("number", CODES)
def test_a_signal_of_the_process_group(tmp_path, command, measure, number):
    """As from a terminal's Ctrl-C, `timeout` or a scheduler: Ray and the ranks do not get it, the driver ends them."""
    measured = measure(13, f"{signal.Signals(number).name} of the process group, training")
    run_dir = tmp_path / "outputs" / "runs" / "faults" / "run"
    driver = command(tmp_path, run_dir, f"hydra.run.dir={run_dir}", "model.kind=slow", "model.seconds=0.2")
    driver.until(moment_of("training", driver))
    family = set(driver.family())
    groups = {
        os.getpgid(process) for process, line in driver.family().items() if "ray" in line.partition(" ")[0]
    }
    assert groups
    assert driver.process.pid not in groups
    moment = time.time()
    os.killpg(driver.process.pid, number)
    outcome = driver.wait(90)
    measured.seconds("end of the command", outcome.ended - moment, 10)
    measured.seconds("all gone", gone(family), 10)
    assert outcome.code == CODES[number], outcome.text
    assert [run.info.status for run in runs_of(tmp_path)] == ["KILLED"]


@pytest.mark.faults
@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_a_multirun(tmp_path, command, measure, number):
    measured = measure(13, f"{signal.Signals(number).name}, second job of a multirun")
    sweep = tmp_path / "outputs" / "multiruns" / "faults" / "sweep"
    driver = command(
        tmp_path,
        sweep,
        "--multirun",
        f"hydra.sweep.dir={sweep}",
        "seed=0,1,2",
        "trainer.epochs=1",
        "model.kind=slow",
        "model.seconds=0.3",
    )
    driver.until((sweep / "1" / "checkpoints" / "step-00000003").exists)
    family = set(driver.family())
    moment = driver.send(number)
    outcome = driver.wait(30)
    measured.seconds("end of the command", outcome.ended - moment, 10)
    measured.seconds("all gone", gone(family), 10)
    assert outcome.code == CODES[number], outcome.text
    results = {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/result.json")}
    assert {job: result["status"] for job, result in results.items()} == {"0": "FINISHED", "1": "KILLED"}
    runs = {run.info.run_id: run for run in runs_of(tmp_path)}
    (parent,) = [run for run in runs.values() if run.data.tags.get("runner.kind") == "multirun"]
    assert parent.info.status == "KILLED"
    assert {runs[result["run_id"]].info.status for result in results.values()} == {"FINISHED", "KILLED"}
    assert len(runs) == 3
    measured.holds("job 1 and the multirun KILLED, job 2 never started")


@pytest.mark.faults
def test_a_second_ctrl_c_does_not_harm(tmp_path, command, measure):
    measured = measure(13, "SIGINT every 0.1 s")
    run_dir = tmp_path / "outputs" / "runs" / "faults" / "run"
    driver = command(tmp_path, run_dir, f"hydra.run.dir={run_dir}", "model.kind=slow", "model.seconds=0.2")
    driver.until(moment_of("training", driver))
    family = set(driver.family())
    moment = driver.send(signal.SIGINT)
    while driver.process.poll() is None and time.time() < moment + 20:
        time.sleep(0.1)
        driver.send(signal.SIGINT)
    outcome = driver.wait(30)
    measured.seconds("end of the command", outcome.ended - moment, 10)
    measured.seconds("all gone", gone(family), 10)
    assert outcome.end == (130, "KILLED", "KILLED"), outcome.text
