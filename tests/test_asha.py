"""Jobs that end early: asynchronous successive halving, on learning curves that are made up."""

import heapq
import math
import random
from dataclasses import replace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.sweep.search import open_search
from runner.sweep.source import FAILED, FINISHED, KILLED, PRUNED, Trial
from runner.sweep_schema import Method, Search

EPOCHS = 27
GRID = ("lr=range(8)", "width=range(8)")
NOISE = 0.01  # of a validation


def opened(sweeps=GRID, earlier=(), maximise=False, method="asha", **settings):
    overrides = OverridesParser.create().parse_overrides(list(sweeps))
    return open_search(Search(Method[method], **settings), overrides, maximise, earlier)


def at(trial):
    return [float(each.partition("=")[2]) for each in trial.overrides]


def loss(trial, seed, epoch):
    """Of a validation. A large LR falls faster and ends higher, so that the first epochs do not say all."""
    lr, width = at(trial)
    noise = random.Random(f"{seed} {lr} {width} {epoch}").gauss(0, NOISE)
    return (
        0.1 + 0.0125 * (lr - 3.2) ** 2 + 0.02 * abs(width - 5) + 0.75 * epoch ** -(0.35 + 0.08 * lr) + noise
    )


def train(source, at_a_time, seed, epochs=math.inf):
    """Epochs trained and the trials as they were told. Wider models take longer; `epochs`: then all is killed."""
    clock, running, ended, trained = [], {}, [], 0
    while True:
        while len(running) < at_a_time and (trial := source.next()):
            running[trial.number] = replace(trial, values={})
            now = min((time for time, _ in clock), default=0.0)
            heapq.heappush(clock, (now + 1 + at(trial)[1] / 4, trial.number))
        if not running:
            return trained, ended
        now, number = heapq.heappop(clock)
        trial = running[number]
        epoch = len(trial.values) + 1
        measured = loss(trial, seed, epoch)
        trial = running[number] = replace(trial, values={**trial.values, float(epoch): measured})
        trained += 1
        over = epoch == EPOCHS
        if over or source.prunes(number, float(epoch), measured):
            best = min(trial.values.values())
            ended.append(replace(running.pop(number), status=FINISHED if over else PRUNED, value=best))
            source.told(ended[-1])
        else:
            heapq.heappush(clock, (now + 1 + at(trial)[1] / 4, number))
        if trained >= epochs:
            return trained, ended + [replace(trial, status=KILLED) for trial in running.values()]


# As trained with 1, 2 and 4 jobs at a time: epochs of 64 × 27 = 1728, and the jobs that trained to the end.
COSTS = {
    (0, 1): (260, 5), (0, 2): (260, 5), (0, 4): (252, 5),
    (1, 1): (330, 8), (1, 2): (330, 8), (1, 4): (330, 8),
    (2, 1): (320, 8), (2, 2): (278, 6), (2, 4): (322, 8),
}  # fmt: skip


@pytest.mark.parametrize(("seed", "at_a_time"), COSTS)
def test_a_grid_costs_a_fifth_of_its_epochs_and_its_best_job_is_found(seed, at_a_time):
    source = opened(seed=seed)
    assert source.total == 64
    trained, ended = train(source, at_a_time, seed)
    complete = [trial for trial in ended if trial.status == FINISHED]
    assert (trained, len(complete)) == COSTS[seed, at_a_time]
    assert trained <= 0.2 * 64 * EPOCHS
    assert len({trial.overrides for trial in ended}) == 64
    whole = (loss(trial, seed, epoch) for trial in ended for epoch in range(1, EPOCHS + 1))
    assert min(trial.value for trial in complete) <= min(whole) + NOISE


def decided(source, *values, epochs=1.0):
    """Which of the trials are stopped that measure these, one after the other."""
    return [source.prunes(source.next().number, epochs, value) for value in values]


def test_a_job_goes_on_if_it_is_among_the_best_third_of_those_before_it_or_the_best_of_two():
    # In their order 1st of 1, 2nd of 2, 1st of 3, 4th of 4, 2nd of 5, 1st of 6, 2nd of 7 (as good as another), …
    values = [5, 6, 4, 7, 4.5, 3, 4, 3.5, 3.6, 3.9]
    stopped = [False, True, False, True, True, False, False, False, False, True]
    assert decided(opened(), *values) == stopped
    assert decided(opened(maximise=True), *[-value for value in values]) == stopped


def test_a_job_is_asked_about_where_a_rung_ends():
    source = opened(min_epochs=2, reduction=2)
    good, bad = source.next().number, source.next().number
    assert [source.prunes(good, epochs, 1.0) for epochs in range(1, 10)] == [False] * 9
    assert [source.prunes(bad, epochs, 2.0) for epochs in (0.5, 1, 1.5)] == [False] * 3
    assert source.prunes(bad, 2, 2.0)
    later = source.next().number
    assert not source.prunes(later, 2, 0.5)
    assert not source.prunes(later, 3, 9.0)
    assert source.prunes(later, 4, 9.0)


def test_a_validation_that_comes_after_the_end_of_a_rung_counts_for_it():
    source = opened()
    assert decided(source, 1.0, 2.0, epochs=2.5) == [False, True]
    assert source.prunes(0, 2.9, 9.0) is False  # not one epoch more
    assert decided(source, 0.5, epochs=0.9) == [False]


def test_what_is_measured_again_after_a_restart_decides_nothing():
    source = opened()
    first, second = source.next().number, source.next().number
    assert [source.prunes(first, 1, 1.0), source.prunes(second, 1, 0.5)] == [False, False]
    assert not source.prunes(first, 1, 9.0)
    assert not source.prunes(first, 2, 9.0)
    assert source.prunes(first, 3, 9.0) is False  # the first that comes so far
    assert source.prunes(second, 3, 9.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_training_that_diverges_ends_at_once(value):
    source = opened()
    number = source.next().number
    assert not source.prunes(number, 1, 1.0)
    assert source.prunes(number, 1.5, value)


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_other_searches_end_no_job(method):
    source = opened(method=method)
    assert decided(source, 1.0, 2.0, math.nan) == [False] * 3


# Taken up again


@pytest.mark.parametrize("epochs", [1, 40, 100, 200, 317])
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(epochs):
    trained, whole = train(opened(seed=2), 1, 2)
    assert trained == 320
    _, first = train(opened(seed=2), 1, 2, epochs)
    assert first[-1].status == KILLED
    _, rest = train(opened(seed=2, earlier=first), 1, 2)
    assert rest[0].number == first[-1].number
    assert first[:-1] + rest == whole


def test_whoever_went_on_had_been_among_the_best_whatever_those_say_that_came_later():
    """Validated at epoch 4, past the ends of two rungs, the worst first: so all of them came past both."""
    earlier = [
        Trial(n, (f"lr={n}", "width=0"), FINISHED, 1.0, {4.0: float(5 - n), 8.0: 1.0}) for n in range(5)
    ]
    asked = [replace(trial, number=4 - trial.number) for trial in earlier]  # of them the best first
    source = opened(earlier=asked)
    assert decided(source, 0.5) == [False]
    assert source.prunes(5, 3, 1.2) is False  # 2nd of 6


def test_tpe_learns_from_jobs_that_ended_early():
    ended = [trial for trial in train(opened(trials=20), 1, 0)[1] if trial.status == PRUNED]
    assert len(ended) >= 10  # before that it picks at random

    def tried(**changed):
        source = opened(earlier=[replace(trial, **changed) for trial in ended], method="tpe", trials=30)
        return [source.next().overrides for _ in range(8)]

    assert tried() != tried(status=FAILED)
    assert tried() != tried(values={})  # how far they came says how good they were
