"""The sessions of a sweep: who gets which, when one is started, closed or replaced. Sessions are stand-ins, threads are jobs."""

import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.job import Memory
from runner.resources import Machine, ResourcePlan
from runner.sweep import pool as pools
from runner.sweep.pool import Pool
from tests.fakes import make_experiment
from tests.sessions import ONE, TWO, Session, lease, pool_of


@pytest.fixture(autouse=True)
def sessions(monkeypatch):
    """Those that were started."""
    monkeypatch.setattr(pools, "Session", Session)
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(put=lambda memory: ("reference", memory)))
    return Session.forget()


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
