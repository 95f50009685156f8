"""When a checkpoint is due: after steps, epochs and minutes, with the same answer on all ranks."""

import pytest

from runner.saving import LOOK_SECONDS, Due
from runner.schema import Checkpoint
from runner.train_state import TrainState
from tests.fakes import on_ranks
from tests.lockstep import in_lockstep

PER_EPOCH, TOTAL = 4, 18  # the training ends in the middle of its fifth epoch


def states(total=TOTAL, stopped_at=None):
    """After each step."""
    for step in range(1, total + 1):
        epoch, rest = divmod(step, PER_EPOCH)
        yield TrainState(
            epoch=epoch, step=step, rows=10 * rest, stopped=step == stopped_at, ended=step == total
        )


def due_steps(settings, **more):
    due = Due(Checkpoint(**settings), on_ranks(1, lambda communicator: communicator))
    return [state.step for state in states(**more) if due(state)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [4, 8, 12, 16, 18]),
        ({"every_epochs": 2}, [8, 16, 18]),
        ({"every_epochs": 99}, [18]),  # the last step always
        ({"every_epochs": None}, [18]),
        ({"every_epochs": None, "every_steps": 5}, [5, 10, 15, 18]),
        ({"every_epochs": 3, "every_steps": 6}, [6, 12, 18]),
        ({"every_epochs": 2, "every_steps": 1}, list(range(1, 19))),
        ({"enabled": False, "every_steps": 1}, []),
    ],
)
def test_a_checkpoint_is_due_after_so_many_steps_and_epochs_and_at_the_end(settings, expected):
    assert due_steps(settings) == expected


def test_where_a_training_stops_early_a_checkpoint_is_due():
    assert due_steps({"every_epochs": 99}, stopped_at=7) == [7, 18]


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


def on_clocks(seconds, ranks=2, minutes=1.0, first=0, skews=(0.0, 500.0, -7.0), **settings):
    """(due steps, collectives) of each rank; `seconds` of each step, on rank 0's clock. The others' differ and drift."""

    def rank(communicator):
        clock = Clock(1000 + skews[communicator.rank])
        due = Due(
            Checkpoint(**{"every_epochs": None, "every_minutes": minutes, **settings}),
            communicator,
            clock,
        )
        found, before = [], getattr(communicator, "collectives", 0)
        for step, duration in enumerate(seconds, start=first + 1):
            clock.now += duration * (1 + 0.2 * communicator.rank)
            if due(TrainState(step=step, rows=1)):
                found.append(step)
        return found, communicator.collectives - before

    return in_lockstep(ranks, rank)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_minutes_are_those_of_rank_0_s_clock(ranks):
    found = on_clocks([10.0] * 20, ranks)  # every six steps of ten seconds
    assert found == [([6, 12, 18], 20)] * ranks


def test_minutes_count_from_the_last_checkpoint_whatever_it_was_due_for():
    found = on_clocks([10.0] * 20, every_steps=4)
    assert [steps for steps, _ in found] == [[4, 8, 12, 16, 20]] * 2
    found = on_clocks([10.0] * 20, every_steps=8)
    assert [steps for steps, _ in found] == [[6, 8, 14, 16]] * 2


@pytest.mark.parametrize("per_second", [1, 3.5, 10, 1000])
def test_a_fast_training_asks_once_a_second(per_second):
    seconds = 150
    steps = int(seconds * per_second)
    (due, collectives), other = on_clocks([1 / per_second] * steps)
    assert (due, collectives) == other
    assert collectives <= seconds + 2  # and the first, which knows no pace
    minutes = [step / per_second for step in due]
    assert len(minutes) == 2
    assert all(0 <= late <= 2 * LOOK_SECONDS for late in (minutes[0] - 60, minutes[1] - minutes[0] - 60))


def test_a_slow_first_step_does_not_hide_the_pace_of_the_others():
    (due, collectives), _ = on_clocks([20.0, *[0.01] * 10_000])
    assert due[0] * 0.01 + 20 == pytest.approx(60, abs=2)
    assert collectives <= 100 + 3


@pytest.mark.parametrize("first", [0, 1_000_000])
def test_a_training_that_goes_on_from_a_late_step_keeps_its_minutes(first):
    """Steps that were taken before must not count as its own pace: it would never ask again."""
    (due, _), _ = on_clocks([10.0] * 13, first=first)
    assert due == [first + 6, first + 12]


def test_without_minutes_nothing_is_asked():
    assert on_clocks([10.0] * 20, minutes=None, every_steps=7) == [([7, 14], 0)] * 2
