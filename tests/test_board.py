"""The board between the driver of a sweep and the ranks of a session: from any number of threads, without Ray."""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.executors.board import Board

PATIENCE = 30.0  # s, that a test which fails takes at most


@pytest.fixture
def waiting(monkeypatch):
    """A semaphore that is released when a thread begins to wait at a board that is made now."""
    begun = threading.Semaphore(0)

    class Waits(threading.Condition):
        def wait(self, timeout=None):
            begun.release()
            return super().wait(timeout)

    monkeypatch.setattr("runner.executors.board.threading", types.SimpleNamespace(Condition=Waits))
    return lambda: begun.acquire(timeout=PATIENCE)


def test_ranks_take_all_jobs_in_the_order_in_which_they_were_put():
    board = Board()
    board.put("job 0")
    board.put("job 1")
    assert [board.take(number, PATIENCE) for number in (0, 1, 0)] == [
        (True, "job 0"),
        (True, "job 1"),
        (True, "job 0"),  # the other rank
    ]
    assert board.take(2, 0.0) == (False, None)
    board.put(None)
    assert board.take(2, 0.0) == (True, None)


def test_a_rank_waits_for_its_job(waiting):
    board = Board()
    with ThreadPoolExecutor(2) as ranks:
        taken = [ranks.submit(board.take, number, PATIENCE) for number in (0, 1)]
        assert waiting()
        assert waiting()
        board.put("job 0")
        assert taken[0].result(PATIENCE) == (True, "job 0")
        assert not taken[1].done()
        board.put("job 1")
        assert taken[1].result(PATIENCE) == (True, "job 1")


def test_the_driver_sees_each_event_once_in_order(waiting):
    board = Board()
    assert board.events(0, 0.0) == []
    assert [board.tell(("report", 0, {"a": 1})), board.tell(("ended", 0, 0, None))] == [0, 1]
    assert board.events(0, PATIENCE) == [("report", 0, {"a": 1}), ("ended", 0, 0, None)]
    assert board.events(1, PATIENCE) == [("ended", 0, 0, None)]
    with ThreadPoolExecutor(1) as driver:
        later = driver.submit(board.events, 2, PATIENCE)
        assert waiting()
        board.tell(("ended", 0, 1, "alone"))
        assert later.result(PATIENCE) == [("ended", 0, 1, "alone")]


def test_a_question_gets_its_own_answer(waiting):
    board = Board()
    with ThreadPoolExecutor(2) as ranks:
        asked = {}
        for number in (0, 1):
            asked[number] = ranks.submit(board.ask, ("asks", number, {}), PATIENCE)
            assert waiting()
        assert board.events(0, PATIENCE) == [("asks", 0, {}), ("asks", 1, {})]
        board.answer(1, True)
        assert asked[1].result(PATIENCE) is True
        assert not asked[0].done()
        board.answer(0, False)
        assert asked[0].result(PATIENCE) is False


def test_a_question_without_an_answer_does_not_hold_up_the_rank():
    board = Board()
    assert board.ask(("asks", 0, {}), 0.0) is None
    board.answer(0, True)  # too late: nobody takes it for the next one's
    assert board.ask(("asks", 0, {}), 0.0) is None


def test_at_the_end_all_ranks_are_killed_those_that_come_later_too(monkeypatch):
    killed = []
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(kill=killed.append))
    board = Board()
    board.enlist("rank 0")
    board.end()
    assert killed == ["rank 0"]
    board.enlist("rank 1")
    assert killed[1:] == ["rank 0", "rank 1"]  # to kill one twice does no harm
