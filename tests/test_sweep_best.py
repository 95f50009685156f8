"""The best job so far, and between driver and ranks the board: from any number of threads."""

import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.executors.board import Board
from runner.plan import Goal
from runner.run_folder import is_free
from runner.sweep import best as bests
from runner.sweep.best import Best

PATIENCE = 30.0  # s, that a test which fails takes at most


@pytest.mark.parametrize(
    ("maximise", "offers", "values"),
    [
        (False, [3.0, 5.0, 2.0, None, 2.0], [3.0, 3.0, 2.0, 2.0, 2.0]),
        (True, [3.0, 5.0, 2.0, 7.0], [3.0, 5.0, 5.0, 7.0]),
        (False, [None, float("nan"), 4.0, float("nan")], [None, None, 4.0, 4.0]),
        (False, [float("inf"), 1.0, float("-inf")], [float("inf"), 1.0, float("-inf")]),
    ],
)
def test_the_best_of_what_is_offered(maximise, offers, values):
    best, found = Best(Goal(maximise=maximise)), []
    for offer in offers:
        best.offer(offer)
        found.append(best.value)
    assert found == values


def test_many_threads_offer_and_none_is_lost():
    best = Best(Goal(maximise=True))
    with ThreadPoolExecutor(8) as threads:
        for first in range(8):
            threads.submit(lambda first=first: [best.offer(float(value)) for value in range(first, 800, 8)])
    assert best.value == 799.0


@pytest.fixture
def added(monkeypatch):
    found = []
    monkeypatch.setattr(bests.left_over, "add_artifact", lambda *arguments: found.append(arguments))
    monkeypatch.setattr(bests.left_over, "deliver_left", lambda folder: found.append("delivered"))
    return found


def draws(name, drawn, folder=None):
    def draw():
        drawn.append(name)
        assert folder is None or not is_free(folder)  # nobody else goes on with this run meanwhile

    return draw


def test_only_the_best_job_s_plots_are_drawn_and_recorded(tmp_path, added):
    best, drawn = Best(Goal()), []
    best.offer(3.0)
    best.keep(0, draws("job 0", drawn))
    best.offer(2.0)
    best.keep(4, draws("job 4", drawn, tmp_path))
    best.offer(2.5)
    best.draw(lambda number: (tmp_path, f"run {number}"), "sqlite:///store")
    assert drawn == ["job 4"]
    assert added == [(tmp_path, "sqlite:///store", "run 4", "plots"), "delivered"]
    assert is_free(tmp_path)


def test_where_a_later_job_or_an_earlier_run_is_the_best_nothing_else_is_drawn(tmp_path, added):
    best, drawn = Best(Goal()), []
    best.offer(3.0)
    best.keep(0, draws("job 0", drawn))
    best.offer(1.0)  # of a run of another sweep, or a job whose plots are switched off
    best.draw(lambda number: (tmp_path, None), "sqlite:///store")
    Best(Goal()).draw(lambda number: (tmp_path, None), "sqlite:///store")
    assert (drawn, added) == ([], [])


def test_without_a_store_the_plots_are_files(tmp_path, added):
    best, drawn = Best(Goal()), []
    best.offer(3.0)
    best.keep(0, draws("job 0", drawn, tmp_path))
    best.draw(lambda number: (tmp_path, None), None)
    assert (drawn, added) == (["job 0"], [])


# The board


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
