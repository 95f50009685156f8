"""A training that is killed and goes on is one MLflow run: each metric is there once at each step, none is missing."""

import json
import math
import os
import subprocess
import sys
from collections import Counter

import pytest
from mlflow import MlflowClient

from runner.schema import Tracking
from runner.tracking import Measured, open_record, open_tracker
from runner.tracking.mlflow import MlflowTracker
from tests.composed import CONF

# One process imports MLflow, and forks each training, which is killed at any moment after the store got some metrics,
# goes on from the newest of its "checkpoints" (a line a checkpoint, in a file that outlives it), is killed again, and
# ends. A trial prints its run and the numbers of metrics that were stored at each kill and that its checkpoint held.
TRAININGS = """
import contextlib, json, os, random, signal, sqlite3, sys, time
from pathlib import Path
import mlflow
from runner.schema import Tracking
from runner.tracking import Measured, open_record, open_tracker
from runner.tracking import entries, mlflow as module

STEPS, EVERY = 60, 9
module.FIRST_FLUSH_SECONDS, entries.MAX_METRICS = 0.0, 5
outputs, folder, settings = Path(sys.argv[1]), Path(sys.argv[2]), Tracking(flush_seconds=0.001)

def measure(step):
    now = time.time_ns() // 1000  # so fine that no two are the same: of equal rows the store itself would keep one
    return Measured(step, now, {"train/loss": 1 / step, "val/loss": float("nan"), "epoch": float(step // 10)})

def train(uri, run_id, checkpoints, seconds):
    start = saved(checkpoints)
    tracker = open_tracker(settings, folder / checkpoints.stem, uri, run_id, [measure(step) for step in range(1, start + 1)])
    for step in range(start + 1, STEPS + 1):
        time.sleep(seconds)
        tracker.log_metrics(measure(step))
        if step % EVERY == 0:
            with checkpoints.open("a") as file:
                file.write(f"{step}\\n")
    tracker.close()

def saved(checkpoints):
    return int(([0] + checkpoints.read_text().split())[-1])

def stored(run_id):
    with contextlib.closing(sqlite3.connect(outputs / "mlflow.db", timeout=30)) as store:
        return store.execute("select count(*) from metrics where run_uuid = ?", [run_id]).fetchone()[0]

def fork(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid

def lives(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

def create(answer):
    record = open_record(settings, outputs, folder / "driver", "killed")
    answer.write_text(json.dumps([record.uri, record.run_id]))

random.seed(int(sys.argv[3]))
for trial in range(int(sys.argv[4])):
    checkpoints, answer = folder / f"{trial}.txt", folder / f"{trial}.json"
    checkpoints.write_text("")
    os.waitpid(fork(create, answer), 0)  # in a fork, for MLflow's connections are not for sharing with one
    uri, run_id = json.loads(answer.read_text())
    kills = []
    for seconds in (0.03, 0.001):  # a step: slower than the store, and faster
        enough = stored(run_id) + random.randrange(30, 70)
        pid = fork(train, uri, run_id, checkpoints, seconds)
        while stored(run_id) < enough and lives(pid):
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.01))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills.append([stored(run_id), 3 * saved(checkpoints)])
    status = os.waitpid(fork(train, uri, run_id, checkpoints, 0.0), 0)[1]
    print(json.dumps([run_id, kills, status]))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """One store for this file: creating it takes seconds."""
    return tmp_path_factory.mktemp("outputs")


@pytest.fixture(autouse=True)
def no_wait(monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 0.0)


@pytest.fixture
def record(outputs, tmp_path):
    return open_record(Tracking(), outputs, tmp_path / "run", "a run")


def stored(record, key):
    """(step, milliseconds, value) in the order of steps."""
    metrics = MlflowClient(record.uri).get_metric_history(record.run_id, key)
    return sorted((metric.step, metric.timestamp, metric.value) for metric in metrics)


def log(folder, record, history, *measured):
    tracker = open_tracker(Tracking(flush_seconds=0.01), folder, record.uri, record.run_id, history)
    for each in measured:
        tracker.log_metrics(each)
    tracker.close()


def at(step, milliseconds, **metrics):
    return Measured(step, milliseconds, metrics)


def test_what_a_kill_lost_from_the_queue_comes_back_with_its_own_time(record, tmp_path):
    log(tmp_path, record, None, at(1, 1000, loss=0.5), at(3, 3000, loss=0.3))
    log(
        tmp_path, record, [at(step, 1000 * step, loss=step / 10) for step in (1, 2, 3)], at(4, 9000, loss=0.4)
    )
    assert stored(record, "loss") == [(1, 1000, 0.5), (2, 2000, 0.2), (3, 3000, 0.3), (4, 9000, 0.4)]


def test_what_arrived_after_the_checkpoint_is_not_repeated(record, tmp_path):
    log(tmp_path, record, None, *(at(step, step, loss=float(step)) for step in range(1, 8)))
    history = [at(step, step, loss=float(step)) for step in range(1, 5)]
    again = [at(step, 100 + step, loss=float(step)) for step in range(5, 10)]
    log(tmp_path, record, history, *again)
    assert stored(record, "loss") == [
        *((step, step, float(step)) for step in range(1, 8)),
        (8, 108, 8.0),
        (9, 109, 9.0),
    ]


def test_half_a_batch_is_completed_key_by_key(record, tmp_path):
    log(tmp_path, record, None, at(1, 1, loss=1.0, lr=0.1))
    MlflowClient(record.uri).log_metric(record.run_id, "loss", 2.0, timestamp=2, step=2)
    log(tmp_path, record, [at(1, 1, loss=1.0, lr=0.1), at(2, 2, loss=2.0, lr=0.2)])
    assert stored(record, "loss") == [(1, 1, 1.0), (2, 2, 2.0)]
    assert stored(record, "lr") == [(1, 1, 0.1), (2, 2, 0.2)]


def test_from_the_start_again_nothing_is_repeated(record, tmp_path):
    log(tmp_path, record, None, at(1, 1, loss=1.0), at(2, 2, loss=2.0))
    log(tmp_path, record, (), at(1, 11, loss=1.0), at(2, 12, loss=2.0), at(3, 13, loss=3.0))
    assert stored(record, "loss") == [(1, 1, 1.0), (2, 2, 2.0), (3, 13, 3.0)]


def test_nan_infinity_and_cleaned_names_count_as_there(record, tmp_path):
    odd = {"not a number": math.nan, "inf": math.inf, "f1[macro]": 0.5}
    log(tmp_path, record, None, Measured(1, 1, odd))
    log(tmp_path, record, [Measured(1, 1, odd)], Measured(1, 5, odd))
    ((step, milliseconds, value),) = stored(record, "not a number")
    assert (step, milliseconds) == (1, 1)
    assert math.isnan(value)
    assert [len(stored(record, key)) for key in ("inf", "f1_macro_")] == [1, 1]


def test_a_history_of_several_pages_is_read_to_its_end(record, tmp_path, monkeypatch):
    monkeypatch.setattr("mlflow.tracking._tracking_service.client.GET_METRIC_HISTORY_MAX_RESULTS", 7)
    history = [at(step, step, loss=float(step)) for step in range(1, 31)]
    log(tmp_path, record, None, *history)
    log(tmp_path, record, history)
    assert [step for step, _, _ in stored(record, "loss")] == list(range(1, 31))


def test_a_fresh_run_asks_the_store_for_nothing(record, tmp_path, monkeypatch):
    asked = []
    for name in ("get_run", "get_metric_history"):
        monkeypatch.setattr(MlflowClient, name, lambda *arguments: asked.append(arguments))
    log(tmp_path, record, None, at(1, 1, loss=1.0))
    assert asked == []
    with pytest.raises(Exception, match="did not take everything"):
        log(tmp_path, record, [], at(1, 1, loss=1.0))
    assert len(asked) == 1  # so the test would have seen it


def test_a_resumed_tracker_takes_metrics_before_the_store_has_answered(record, tmp_path, monkeypatch):
    monkeypatch.setattr("runner.tracking.mlflow.FIRST_FLUSH_SECONDS", 60.0)
    tracker = MlflowTracker(tmp_path, record.uri, record.run_id, 0.01, [at(1, 1, loss=1.0)])
    tracker.log_metrics(at(2, 2, loss=2.0))
    assert stored(record, "loss") == []
    tracker.close()
    assert stored(record, "loss") == [(1, 1, 1.0), (2, 2, 2.0)]


def killed_trainings(outputs, folder, seed, trials):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAININGS, str(outputs), str(folder), str(seed), str(trials)],
        cwd=CONF.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("trials", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_killed_twice_at_any_moment_each_metric_is_there_once_at_each_step(record, outputs, tmp_path, trials):
    client = MlflowClient(record.uri)
    ahead, behind = 0, 0
    for run_id, kills, status in killed_trainings(outputs, tmp_path, trials, trials):
        assert status == 0
        ahead += sum(stored > saved for stored, saved in kills)
        behind += sum(stored < saved for stored, saved in kills)
        for key in ("train/loss", "val/loss", "epoch"):
            metrics = client.get_metric_history(run_id, key)
            assert Counter(metric.step for metric in metrics) == dict.fromkeys(range(1, 61), 1)
        losses = {metric.step: metric.value for metric in client.get_metric_history(run_id, "train/loss")}
        assert losses == {step: 1 / step for step in range(1, 61)}
    print(f"of {2 * trials} kills {ahead} left metrics to repeat, {behind} lost some that a checkpoint held")
