"""MLflow's server is not there, dies, or stands still while it is recorded to: the training does not notice."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from mlflow import MlflowClient

from runner import __main__ as door
from tests.mlflow_server import Server, server

MODEL = "tracking.log_model=true"
LONGER = 10.0  # s that an outage may cost a run


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def sync(home):
    """Exit code of `python -m runner sync` in the working directory of the runs."""

    def run():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(home)
            return door.run(["sync"])

    return run


def stored(running, outcome):
    """`outcome` with what the server has of it."""
    return replace(outcome, store=running.uri)


def assert_recorded(running, outcome):
    """Everything that the driver and rank 0 record beside metrics; each metric of each step in one row."""
    client = MlflowClient(running.uri)
    run = client.get_run(outcome.run_id)
    assert run.data.params["scaling.num_workers"]
    assert run.data.tags["runner.checkpoint.last"] == outcome.checkpoints[-1]
    files = {each.path for each in client.list_artifacts(outcome.run_id)}
    assert files >= {"checkpoints", "config.yaml", "environment.json", "logs", "plan.txt", "result.json"}
    rows = Counter((key, step) for key, step, _, _ in running.rows(outcome.run_id))
    assert set(rows.values()) == {1}
    assert not [*outcome.run_dir.glob("tracking/*.jsonl")]


def test_a_server_that_never_answers_is_refused(here, running, measure):
    """It takes connections, as one that is stopped does."""
    measured = measure(18, "stopped (SIGSTOP), refuse")
    running.send(signal.SIGSTOP)
    try:
        before = time.time()
        outcome = here("outage-refused", f"tracking.uri={running.uri}")
    finally:
        running.send(signal.SIGCONT)
    measured.seconds("refused", outcome.ended - before, 15)
    assert outcome.code == 2
    assert outcome.error == (
        f"tracking.uri={running.uri}: nothing answers there (no answer in 5 s); start the server, or type "
        "tracking=none to train without it, or tracking.on_outage=spool to train now and record later"
    )


@pytest.mark.faults
def test_a_server_that_never_answers_is_recorded_to_later(here, running, sync, uninterrupted, measure):
    measured = measure(18, "stopped (SIGSTOP), spool")
    running.send(signal.SIGSTOP)
    try:
        outcome = here("outage-spool", f"tracking.uri={running.uri}", "tracking.on_outage=spool")
        assert (outcome.code, outcome.result["status"], outcome.result["run_id"]) == (0, "FINISHED", None)
        assert "; type python -m runner sync" in outcome.text
        assert sync() == 1
    finally:
        running.send(signal.SIGCONT)
    assert sync() == 0
    outcome = stored(running, outcome)
    assert outcome.end == (0, "FINISHED", "FINISHED")
    assert outcome.result["run_id"] == outcome.run_id
    outcome.assert_equals(uninterrupted(2))
    assert_recorded(running, outcome)
    measured.holds("recorded by sync: hash, metrics, status")


def test_a_server_that_is_killed_costs_nothing(here, running, sync, uninterrupted, measure, home):
    measured = measure(19, "SIGKILL in epoch 1, back after the run")
    run_dir = home / "outputs" / "runs" / "faults" / "outage-killed"

    def kill():
        while not (run_dir / "checkpoints" / "step-00000003").exists():
            time.sleep(0.01)
        running.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    outcome = here("outage-killed", f"tracking.uri={running.uri}", MODEL)
    killing.join()
    assert (outcome.code, outcome.result["status"]) == (0, "FINISHED"), outcome.text
    assert outcome.text.count(f"MLflow at {running.uri} does not answer (") == 1
    assert (
        "outage-killed: not all of it is in MLflow yet (Connection refused); type python -m runner sync"
        in (outcome.text)
    )
    running.start()
    assert sync() == 0
    outcome = stored(running, outcome)
    assert outcome.end == (0, "FINISHED", "FINISHED")
    outcome.assert_equals(uninterrupted(2))
    assert_recorded(running, outcome)
    measured.holds("recorded by sync: hash, metrics, artifacts, model, status")


def four_at_once(command, home, running, folder, hit):
    """Four runs, and what happens to the server while they train; their outcomes."""
    runs = []
    for number, workers in enumerate((1, 2, 1, 2)):
        run_dir = home / "outputs" / "runs" / folder / str(number)
        overrides = [f"hydra.run.dir={run_dir}", f"scaling.num_workers={workers}", f"seed={number}", MODEL]
        slow = ["model.kind=slow", f"model.seconds={0.3 * workers}"]  # 52 steps with one worker, 28 with two
        more = ["scaling.resources_per_worker.CPU=0.5", f"tracking.uri={running.uri}"]
        runs.append(command(home, run_dir, *overrides, *slow, *more))
    for run in runs:
        run.until(lambda path=run.run_dir / "checkpoints": any(path.glob("step-*")), 300)
    hit()
    return [stored(running, run.wait(300)) for run in runs]


def after_launch(outcome):
    """Seconds from the first step to the command's last line."""
    seconds = outcome.result["seconds"]
    trained = seconds["total"] - seconds["check"] - seconds["start"] - seconds["launch"]
    return trained + outcome.lines[-1][0] - (outcome.run_dir / "result.json").stat().st_mtime


@pytest.mark.faults
def test_four_runs_at_once_lose_nothing_when_the_server_is_killed_stopped_and_started_again(
    tmp_path, command, running, measure, monkeypatch
):
    def kill_and_start():
        running.kill()
        time.sleep(3)
        running.start()

    def stop_and_go_on():
        running.send(signal.SIGSTOP)
        time.sleep(15)
        running.send(signal.SIGCONT)

    quiet = four_at_once(command, tmp_path, running, "quiet", lambda: None)
    for folder, hit in (("killed", kill_and_start), ("stopped", stop_and_go_on)):
        fault = "SIGKILL, started again" if folder == "killed" else "SIGSTOP for 15 s"
        measured = measure(19, f"4 runs at once, {fault}")
        found = four_at_once(command, tmp_path, running, folder, hit)
        monkeypatch.chdir(tmp_path)
        assert door.run(["sync"]) == 0
        for mine, other in zip(found, quiet, strict=True):
            assert mine.end == (0, "FINISHED", "FINISHED"), mine.text
            mine.assert_equals(other)
            assert_recorded(running, mine)
            (model,) = MlflowClient(running.uri).get_run(mine.run_id).outputs.model_outputs
            assert MlflowClient(running.uri).get_logged_model(model.model_id).status == "READY"
        measured.holds("hash, metrics, artifacts, model, status")
        longer = [after_launch(mine) - after_launch(other) for mine, other in zip(found, quiet, strict=True)]
        measured.seconds("longer by at most", max(longer), LONGER)
