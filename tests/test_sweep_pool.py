"""The sessions of a sweep: who gets which, when one is started, closed or replaced. Sessions are stand-ins, threads are jobs."""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.diagnosis import Diagnosis, record_error
from runner.errors import TrainingError
from runner.executors.session import EndedError
from runner.resources import Machine, ResourcePlan
from runner.sweep import pool as pools
from runner.sweep.pool import Pool
from runner.worker import Job, Memory
from tests.fakes import make_experiment, plan_for

ONE, TWO = ResourcePlan(1, 1.0, 0.0), ResourcePlan(2, 1.0, 0.0)


class Session:
    """What it was asked; `ends` are how its trainings end, one after the other, on whichever session."""

    started: list["Session"]
    ends: list[Exception | None]
    survives: bool

    def __init__(self, experiment, kind, folder):
        self.kind, self.folder, self.is_open, self.trained = kind, folder, True, []
        Session.started.append(self)

    def train(self, job, memory, received, is_restart, is_pruned, stopping):
        self.trained.append((job, memory, received, is_restart, is_pruned, stopping))
        end = Session.ends.pop(0) if Session.ends else None
        if end is not None:
            self.is_open = Session.survives
            raise end

    def close(self):
        self.is_open = False


class Waits(threading.Condition):
    """Says when a thread has begun to wait."""

    def __init__(self):
        super().__init__()
        self._begun = threading.Semaphore(0)

    def wait(self, timeout=None):
        self._begun.release()
        return super().wait(timeout)

    def until_one_more_waits(self):
        assert self._begun.acquire(timeout=30)
        with self:  # which it has let go of by now
            pass


@pytest.fixture(autouse=True)
def sessions(monkeypatch):
    """Those that were started."""
    Session.started, Session.ends, Session.survives = [], [], False
    monkeypatch.setattr(pools, "Session", Session)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(put=lambda memory: ("reference", memory)))
    return Session.started


def pool_of(cpus=2.0, at_most=None, is_shared=True, gpus=0.0):
    found = Pool(Machine(cpus, gpus), Path("/ray"), at_most, is_shared)
    found._changed = Waits()
    return found


def lease(pool, number=0, resources=ONE, **settings):
    experiment = make_experiment({key.replace("__", "."): value for key, value in settings.items()})
    return pool.lease(number, experiment, resources, Path(f"/run/{number}"))


def open_ones(sessions):
    return [session for session in sessions if session.is_open]


# Who gets which


def test_a_session_is_used_again_and_two_jobs_have_two(sessions):
    pool = pool_of()
    first, second = lease(pool), lease(pool, 1)
    assert len(sessions) == 2
    assert sessions[0].folder == Path("/ray")
    second.release()
    third = lease(pool, 2)
    assert third._session is sessions[1]
    first.release()
    first.release()  # again, when it may be another job's
    assert lease(pool, 3)._session is sessions[0]
    assert len(sessions) == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"trainer__deterministic": True},
        {"horovod__cycle_time_ms": 5.0},
        {"horovod__timeout_s": 7},
        {"resources": TWO},
    ],
)
def test_jobs_of_another_kind_have_sessions_of_their_own(sessions, settings):
    pool = pool_of(cpus=3)
    lease(pool).release()
    lease(pool, **settings).release()
    assert len(open_ones(sessions)) == 2
    lease(pool).release()
    lease(pool, **settings).release()
    assert len(sessions) == 2


@pytest.mark.parametrize(
    "settings", [{"optimizer__lr": 0.9}, {"trainer__batch_size": 4}, {"seed": 3}, {"verbose": True}]
)
def test_jobs_that_differ_in_what_they_train_share_one(sessions, settings):
    pool = pool_of()
    lease(pool).release()
    lease(pool, **settings).release()
    assert len(sessions) == 1


def test_an_idle_session_of_another_kind_makes_room_the_oldest_first(sessions):
    pool = pool_of(cpus=3)
    busy = lease(pool)
    for settings in ({"trainer__deterministic": True}, {"horovod__cycle_time_ms": 5.0}):
        lease(pool, **settings).release()
    lease(pool, 1, horovod__cycle_time_ms=9.0)
    assert [session.is_open for session in sessions] == [True, False, True, True]
    assert busy._session is sessions[0]
    lease(pool, 2, horovod__cycle_time_ms=5.0)
    assert len(sessions) == 4  # it was still there


def test_a_session_that_died_holds_no_room(sessions):
    pool = pool_of(cpus=1)
    lease(pool).release()
    sessions[0].is_open = False
    assert lease(pool)._session is sessions[1]


@pytest.mark.parametrize(
    ("machine", "needs", "at_most", "room"),
    [
        (Machine(4), ResourcePlan(1, 1.0, 0.0), None, 4),
        (Machine(4), ResourcePlan(1, 1.0, 0.0), 3, 3),
        (Machine(4), ResourcePlan(1, 1.0, 0.0), 9, 4),
        (Machine(4), ResourcePlan(3, 1.0, 0.0), None, 1),
        (Machine(2), ResourcePlan(4, 0.25, 0.0), None, 2),
        (Machine(5), ResourcePlan(1, 1.0, 0.0, reserved_cpus=1.0), None, 2),
        (Machine(1), ResourcePlan(2, 1.0, 0.0), None, 1),  # preflight's concern
        (Machine(8, 2.0), ResourcePlan(1, 1.0, 1.0), None, 2),
        (Machine(8, 2.0), ResourcePlan(2, 1.0, 1.0), None, 1),
        (Machine(8, 2.0), ResourcePlan(1, 1.0, 0.0), None, 8),
    ],
)
def test_how_many_fit(sessions, machine, needs, at_most, room):
    pool = Pool(machine, Path("/ray"), at_most, is_shared=True)
    assert pool.room(needs) == room
    for number in range(room + 2):
        pool.prestart(make_experiment(), needs)
        assert len(sessions) == min(number + 1, room)
    for number in range(room):
        pool.lease(number, make_experiment(), needs, Path("/run"))
    assert len(sessions) == room  # those that were started before


def test_of_those_that_wait_the_lowest_number_is_served_first(sessions):
    pool = pool_of(cpus=1)
    held, served = lease(pool), []

    def job(number):
        mine = lease(pool, number)
        served.append(number)
        mine.release()

    with ThreadPoolExecutor(3) as threads:
        for number in (5, 3, 4):
            threads.submit(job, number)
            pool._changed.until_one_more_waits()
        assert served == []
        held.release()
    assert served == [3, 4, 5]
    assert len(sessions) == 1


def test_a_job_that_needs_more_room_is_not_overtaken(sessions):
    pool = pool_of(cpus=2)
    held, other, served = lease(pool), lease(pool), []

    def job(number, resources):
        mine = lease(pool, number, resources)
        served.append(number)
        mine.release()

    with ThreadPoolExecutor(2) as threads:
        threads.submit(job, 1, TWO)
        pool._changed.until_one_more_waits()
        threads.submit(job, 2, ONE)
        pool._changed.until_one_more_waits()
        other.release()  # enough for 2, and not for 1
        pool._changed.until_one_more_waits()
        pool._changed.until_one_more_waits()
        assert served == []
        held.release()
    assert served == [1, 2]
    assert [session.kind.resources for session in sessions] == [ONE, ONE, TWO, ONE]


def test_a_job_that_is_alone_has_a_session_that_nobody_else_gets(sessions):
    pool = pool_of(is_shared=False)
    pool.prestart(make_experiment(), ONE)
    assert sessions == []
    first = lease(pool)
    assert sessions[0].kind.alone == Path("/run/0")
    first.release()
    assert not sessions[0].is_open
    lease(pool, 1).release()
    assert len(sessions) == 2


def test_a_timeline_is_of_one_job(sessions):
    pool = pool_of()
    lease(pool, horovod__timeline=True).release()
    assert sessions[0].kind.alone == Path("/run/0")
    assert not sessions[0].is_open
    pool.prestart(make_experiment({"horovod.timeline": True}), ONE)
    assert len(sessions) == 1


def test_a_pool_that_is_closed_ends_its_sessions(sessions):
    pool = pool_of()
    lease(pool).release()
    pool.prestart(make_experiment({"trainer.deterministic": True}), ONE)
    pool.close()
    assert open_ones(sessions) == []
    pool.close()


# Training


@pytest.fixture
def lost(monkeypatch):
    """Each failure is a lost process."""
    found = Diagnosis(TrainingError("rank 1 was killed"), is_final=False, rank=1)
    monkeypatch.setattr(pools, "diagnose", lambda *_: found)


def job_in(run_dir, experiment=None):
    experiment = experiment or make_experiment()
    return Job(experiment, plan_for(1, 4), None, run_dir, None, None, run_dir, (), {})


def train(mine, run_dir=Path("/run"), restarted=None, is_pruned=None):
    restarts = []
    received = object()
    try:
        mine.train(
            job_in(run_dir),
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
    assert open_ones(sessions) == []
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


def test_any_other_error_frees_the_session(sessions):
    pool = pool_of(cpus=1)
    mine = lease(pool)
    Session.ends, Session.survives = [OSError("disk full")], True
    with pytest.raises(OSError, match="disk full"):
        train(mine)
    assert lease(pool, 1)._session is sessions[0]


def test_who_waits_when_all_is_stopped_is_interrupted(sessions):
    pool = pool_of(cpus=1)
    lease(pool)
    with ThreadPoolExecutor(2) as threads:
        waiting = []
        for number in (1, 2):
            waiting.append(threads.submit(lease, pool, number))
            pool._changed.until_one_more_waits()
        pool.stop()
        assert [type(each.exception(timeout=30)) for each in waiting] == [KeyboardInterrupt] * 2
    assert len(sessions) == 1


def test_nobody_begins_when_all_is_stopped(sessions):
    pool = pool_of()
    lease(pool).release()
    pool.stop()
    with pytest.raises(KeyboardInterrupt):
        lease(pool, 1)


def test_data_are_in_ray_s_memory_once(monkeypatch):
    put = []
    monkeypatch.setattr(sys.modules["ray"], "put", lambda memory: put.append(memory) or len(put))
    pool, memory, weights = pool_of(), Memory({}), Memory({}, initial={})
    one, other = object(), object()
    assert [pool.share(memory, one), pool.share(Memory({}), one)] == [1, 1]
    assert pool.share(weights, one) == 2  # with weights of its own
    assert pool.share(memory, one) == 1
    assert pool.share(memory, other) == 3
    assert pool.share(memory, other) == 3
    assert pool.share(memory, one) == 4  # only the last data set is kept
