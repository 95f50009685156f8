"""A job in a session of a sweep: what it gets, and what happens when processes are lost."""

import sys
import types
from pathlib import Path

import pytest

from runner.diagnosis import Diagnosis, record_error
from runner.errors import TrainingError
from runner.executors import attempts
from runner.executors.attempts import EndedError
from runner.job import Job, Memory
from runner.sweep import pool as pools
from tests.fakes import make_experiment, plan_for
from tests.sessions import Session, lease, pool_of


@pytest.fixture(autouse=True)
def sessions(monkeypatch):
    """Those that were started."""
    monkeypatch.setattr(pools, "Session", Session)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(put=lambda memory: ("reference", memory)))
    return Session.forget()


@pytest.fixture
def lost(monkeypatch):
    """Each failure is a lost process."""
    found = Diagnosis(TrainingError("rank 1 was killed"), is_final=False, rank=1)
    monkeypatch.setattr(attempts, "diagnose", lambda *_: found)


def job_in(run_dir, experiment=None):
    experiment = experiment or make_experiment()
    return Job(experiment, plan_for(1, 4), None, run_dir, None, None, run_dir, (), {})


def train(mine, run_dir=Path("/run"), restarted=None, is_pruned=None):
    restarts = []
    received = object()
    try:
        mine.train(
            job_in(run_dir, mine._experiment),
            Memory({}),
            "data",
            received,
            restarted or (lambda count, why: restarts.append((count, why))),
            is_pruned,
        )
    finally:
        train.restarts = restarts
    return received


def test_a_session_gets_the_job_its_memory_and_what_it_reports_to(sessions):
    pool = pool_of()
    mine = lease(pool)
    received = train(mine, is_pruned=len)
    ((job, memory, heard, is_restart, is_pruned, stopping),) = sessions[0].trained
    assert (job.run_dir, memory, is_restart) == (Path("/run"), ("reference", Memory({})), False)
    assert heard is received
    assert is_pruned is len
    assert not stopping()
    assert lease(pool, 1)._session is sessions[0]  # trained is released
    pool.stop()
    assert stopping()


@pytest.mark.usefixtures("lost")
def test_a_job_that_lost_a_process_starts_again_in_a_new_session(sessions):
    pool = pool_of(cpus=1)
    mine = lease(pool, trainer__max_failures=2)
    Session.ends = [EndedError("gone"), EndedError("gone"), None]
    train(mine)
    assert train.restarts == [(1, "rank 1 was killed"), (2, "rank 1 was killed")]
    assert [[call[3] for call in session.trained] for session in sessions] == [[False], [True], [True]]
    assert [session.is_open for session in sessions] == [False, False, True]
    assert lease(pool, 1)._session is sessions[2]


@pytest.mark.usefixtures("lost")
def test_ranks_that_failed_together_take_it_up_themselves(sessions):
    Session.survives = True
    mine = lease(pool_of(), trainer__max_failures=1)
    Session.ends = [EndedError("a rank failed")]
    train(mine)
    assert [[call[3] for call in session.trained] for session in sessions] == [[False, True]]


@pytest.mark.usefixtures("lost")
@pytest.mark.parametrize(
    ("most", "said"),
    [
        (0, "rank 1 was killed"),
        (2, "rank 1 was killed; 2 restarts did not help (trainer.max_failures=2)"),
    ],
)
def test_after_max_failures_the_cause_is_raised(sessions, most, said):
    pool = pool_of(cpus=1)
    mine = lease(pool, trainer__max_failures=most)
    Session.ends = [EndedError("gone")] * 9
    with pytest.raises(TrainingError) as failed:
        train(mine)
    assert str(failed.value) == said
    assert len(sessions) == most + 1
    assert not any(session.is_open for session in sessions)
    assert lease(pool, 1)._session is sessions[-1]  # a new one


def test_an_error_of_python_code_is_not_tried_again(sessions, tmp_path):
    mine = lease(pool_of(), trainer__max_failures=3)

    class Failing(Session):
        def train(self, job, *rest):
            try:
                raise ValueError("no such column")
            except ValueError as error:
                record_error(job.run_dir, 0, error)
            raise EndedError("a rank failed")

    mine._session.__class__ = Failing
    with pytest.raises(TrainingError, match=r"^rank 0: ValueError: no such column"):
        train(mine, tmp_path)
    assert len(sessions) == 1


def test_after_an_error_the_session_is_others_when_it_is_released(sessions):
    """So that who stops all of them on a failure comes before the next job."""
    pool = pool_of(cpus=1)
    mine = lease(pool)
    Session.ends, Session.survives = [OSError("disk full")], True
    with pytest.raises(OSError, match="disk full"):
        train(mine)
    assert pool._busy == {id(sessions[0])}
    mine.release()
    assert lease(pool, 1)._session is sessions[0]
