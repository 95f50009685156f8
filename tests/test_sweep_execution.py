"""The jobs of a sweep while they run: which are begun, what they are told, how they end."""

import sys
import threading
import types
from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import ConfigError, TrainingError
from runner.sweep import execution as executions
from runner.sweep import pool as pools
from runner.sweep.execution import CLOSING
from runner.sweep.job import Action
from runner.sweep.source import Trial
from runner.sweep_schema import Method, Models, OnFailure
from tests.executions import Session, Sweep, Told, jobs_of, numbers, train_job
from tests.sweeps import found, job_of

PATIENCE = 30.0  # s, that a test which fails takes at most


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    Session.ends, Session.trained = {}, []
    monkeypatch.setattr(pools, "Session", Session)
    monkeypatch.setattr(executions, "train_job", train_job)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(put=lambda memory: memory))


def test_all_jobs_are_trained_and_told(tmp_path):
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 9))
    Session.ends = {4: 0.5}
    assert sweep.run() == {number: ("FINISHED", 0.5 if number == 4 else 1.0) for number in range(9)}
    assert sorted(numbers()) == list(range(9))
    told = sorted(sweep.source.heard, key=lambda trial: trial.number)
    assert told[4] == Trial(4, ("seed=4", "common=1"), "FINISHED", 0.5, {1.0: 9.0, 2.0: 0.5})
    assert [trial.number for trial in told] == list(range(9))
    assert (sweep.execution.best.number, sweep.execution.best.value) == (4, 0.5)
    assert "  seed=4  FINISHED  val/loss 0.5  " in sweep.printed  # without what all have
    assert (tmp_path / "4/.hydra/config.yaml").read_text() == "seed: 0\n"
    assert (tmp_path / "4/.hydra/overrides.yaml").read_text() == '- "seed=4"\n- "common=1"\n'


def test_jobs_run_side_by_side_as_far_as_there_is_room(tmp_path):
    together = threading.Barrier(3)
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 6), cpus=3.0)
    Session.ends = dict.fromkeys(range(6), lambda *_: (together.wait(PATIENCE), 1.0)[1])
    assert len(sweep.run()) == 6


def test_a_job_that_fails_does_not_keep_the_others(tmp_path, capsys):
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 4))
    Session.ends = {1: TrainingError("rank 0: no"), 2: ZeroDivisionError("a mistake of runner's own")}
    assert sweep.run() == {
        0: ("FINISHED", 1.0),
        1: ("FAILED", None),
        2: ("FAILED", None),
        3: ("FINISHED", 1.0),
    }
    assert [result.get("error") for _, result in sweep.execution.results.values()].count("rank 0: no") == 1
    assert "job 2: Traceback" in sweep.printed
    assert "job 1: Traceback" not in sweep.printed
    assert "error: job 1 (seed=1): rank 0: no\n" in capsys.readouterr().err


def test_a_session_that_cannot_be_started_fails_its_job_and_not_the_sweep(tmp_path, monkeypatch):
    class Refused(Session):
        def __init__(self, experiment, kind, folder, is_local):
            monkeypatch.setattr(pools, "Session", Session)
            raise OSError("no more processes")

    monkeypatch.setattr(pools, "Session", Refused)
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 3))
    sweep.run()
    results = [result for _, result in sweep.execution.results.values()]
    assert sorted(result["status"] for result in results) == ["FAILED", "FINISHED", "FINISHED"]
    assert [result["error"] for result in results if "error" in result] == ["no more processes"]


@pytest.mark.parametrize("error", [TrainingError("no"), ZeroDivisionError("no")])
def test_with_on_failure_stop_no_job_begins_after_a_failure(tmp_path, error):
    begun = []

    def fails(*_):
        begun.extend(numbers())
        raise error

    sweep = Sweep(tmp_path, jobs_of(tmp_path, 20), settings={"sweep.on_failure": OnFailure["stop"]})
    Session.ends = {2: fails}
    assert sweep.run() == {number: ("FAILED", None) if number == 2 else ("FINISHED", 1.0) for number in begun}
    assert numbers() == begun  # one at a time, so that all of them had ended
    assert len(begun) < 20


def test_with_on_failure_stop_those_that_run_end(tmp_path):
    together, failed = threading.Barrier(2), threading.Event()

    def ends(*_):
        if together.wait(PATIENCE):
            raise TrainingError("no")
        assert failed.wait(PATIENCE)
        return 0.5

    sweep = Sweep(tmp_path, jobs_of(tmp_path, 9), Told([]), {"sweep.on_failure": OnFailure["stop"]}, cpus=2.0)
    sweep.source.told = lambda trial: failed.set() if trial.status == "FAILED" else None
    Session.ends = dict.fromkeys(range(9), ends)
    assert sorted(sweep.run().values(), key=str) == [("FAILED", None), ("FINISHED", 0.5)]
    assert len(numbers()) == 2


def test_what_was_done_before_is_shown_and_told_and_not_trained(tmp_path):
    first, done, last = jobs_of(tmp_path, 3)
    done = replace(done, prepared=None, action=Action.CACHED, earlier=found())
    sweep = Sweep(tmp_path, [first, done, last])
    assert sweep.run() == {0: ("FINISHED", 1.0), 1: ("FINISHED", 0.25), 2: ("FINISHED", 1.0)}
    assert sorted(numbers()) == [0, 2]
    assert (sweep.execution.best.number, sweep.execution.best.value) == (1, 0.25)
    assert "job 1  seed=1  cached  val/loss 0.25" in sweep.printed
    assert {trial.number for trial in sweep.source.heard} == {0, 1, 2}


def test_each_job_is_told_what_it_has_to_beat(tmp_path):
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 4))
    Session.ends = {0: 3.0, 1: 5.0, 2: 2.0, 3: 4.0}
    sweep.run()
    reached = [Session.ends[number] for number in numbers()]
    assert [(job.best_only, job.to_beat) for _, job in Session.trained] == [
        (True, None), (True, reached[0]), (True, min(reached[:2])), (True, min(reached[:3])),
    ]  # fmt: skip
    assert sweep.execution.best.number == 2


def test_where_all_models_are_kept_nothing_has_to_be_beaten(tmp_path):
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 2), settings={"sweep.models": Models.all})
    sweep.run()
    assert [(job.best_only, job.to_beat) for _, job in Session.trained] == [(False, None)] * 2
    assert sweep.execution.best._plots == {}  # drawn at once


def test_a_search_is_asked_after_each_validation_by_one_thread_at_a_time(tmp_path):
    together = threading.Barrier(3)

    def trains(is_pruned, stopping):
        together.wait(PATIENCE)
        answers = [is_pruned({"epoch": epoch, "val/loss": epoch / 2}) for epoch in (1.0, 2.0)]
        return 0.5 if answers == [False, True] else 7.0

    sweep = Sweep(tmp_path, jobs_of(tmp_path, 3), settings={"search.method": Method.asha}, cpus=3.0)
    inside = []

    def prunes(number, epochs, value):
        inside.append(number)
        assert len(inside) == 1
        assert sweep.execution._lock.locked()
        inside.remove(number)
        return epochs == 2.0

    sweep.source.prune = prunes
    Session.ends = dict.fromkeys(range(3), trains)
    assert set(sweep.run().values()) == {("FINISHED", 0.5)}
    assert sorted(sweep.source.asked) == [
        (number, epoch, epoch / 2) for number in range(3) for epoch in (1.0, 2.0)
    ]


@pytest.mark.parametrize("method", [Method.grid, Method.random, Method.tpe])
def test_no_other_search_is_asked(tmp_path, method):
    def trains(is_pruned, stopping):
        assert is_pruned is None
        return 1.0

    Session.ends = {0: trains}
    sweep = Sweep(tmp_path, jobs_of(tmp_path, 1), settings={"search.method": method})
    assert sweep.run() == {0: ("FINISHED", 1.0)}


@pytest.mark.parametrize(("method", "ahead"), [(Method.tpe, 0), (Method.random, 1 + CLOSING)])
def test_how_many_trials_are_asked_for_before_others_end(tmp_path, method, ahead):
    """Those ahead are prepared while others train; but what tpe tries next depends on how they end."""
    source, jobs = Told([(f"seed={number}", "common=1") for number in range(12)]), jobs_of(tmp_path, 12)
    most = []

    def checked(trial):
        most.append(trial.number + 1 - len(source.heard))
        return jobs[trial.number]

    sweep = Sweep(tmp_path, [], source, {"search.method": method}, checked=checked)
    assert len(sweep.run()) == 12
    assert max(most) == 1 + ahead
    assert sorted(numbers()) == list(range(12))


def test_a_trial_that_is_refused_ends_the_sweep_and_what_runs_is_killed(tmp_path):
    begun = threading.Event()

    def trains(is_pruned, stopping):
        begun.set()
        assert sweep.pool._stopping.wait(PATIENCE)
        assert stopping()
        raise KeyboardInterrupt

    jobs = jobs_of(tmp_path, 2)

    def checked(trial):
        if trial.number == 2:
            assert begun.wait(PATIENCE)
            raise ConfigError("job 2: refused")
        return jobs[trial.number]

    sweep = Sweep(tmp_path, [], Told([()] * 4), {"search.method": Method.random}, checked=checked)
    Session.ends = dict.fromkeys(range(2), trains)
    with pytest.raises(ConfigError, match="refused"):
        sweep.run()
    sweep.execution.stop()
    results = [result["status"] for _, result in sweep.execution.results.values()]
    assert results == ["KILLED"]  # the other waited for a session: it has no run
    assert len(numbers()) == 1
    assert sweep.source.heard == []


def test_without_jobs_to_run_there_is_no_pool(tmp_path):
    done = replace(job_of(tmp_path, 0), action=Action.CACHED, earlier=found())
    sweep = Sweep(tmp_path, [done])
    sweep.execution._pool = None
    assert sweep.run() == {0: ("FINISHED", 0.25)}
    sweep.execution.stop()
    assert Path(tmp_path / "0").exists() is False


def test_a_trial_that_is_no_job_fails_alone(tmp_path, capsys):
    jobs = jobs_of(tmp_path, 3)
    jobs[1] = replace(jobs[1], prepared=None, action=Action.REFUSED, reason="model.dropout=2: too much")
    sweep = Sweep(tmp_path, jobs)
    assert sweep.run() == {0: ("FINISHED", 1.0), 1: ("FAILED", None), 2: ("FINISHED", 1.0)}
    assert numbers() == [0, 2]
    assert "job 1  seed=1  refused" in sweep.printed
    assert "job 1 (seed=1): model.dropout=2: too much" in capsys.readouterr().err
    assert {trial.number: trial.status for trial in sweep.source.heard}[1] == "FAILED"


def test_a_trial_that_is_no_job_stops_a_sweep_that_is_to_stop(tmp_path):
    jobs = jobs_of(tmp_path, 2)
    jobs[0] = replace(jobs[0], prepared=None, action=Action.REFUSED, reason="model.dropout=2: too much")
    sweep = Sweep(tmp_path, jobs, settings={"sweep.on_failure": OnFailure["stop"]})
    assert sweep.run() == {0: ("FAILED", None)}
    assert numbers() == []
