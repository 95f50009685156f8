"""Searches: what they try, what they learn, how they are taken up again, and which jobs end early."""

import math
import re
from dataclasses import replace
from statistics import median

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.errors import ConfigError
from runner.sweep.search import open_search
from runner.sweep.source import FAILED, FINISHED, KILLED, Trial
from runner.sweep_schema import Method, Search

PLANE = ("x=interval(-5,5)", "y=interval(-5,5)", "trainer.epochs=3")
GRID = ("x=1,2,3", "y=range(4)")


def opened(method, sweeps, earlier=(), maximise=False, **settings):
    overrides = OverridesParser.create().parse_overrides(list(sweeps))
    return open_search(Search(Method[method], **settings), overrides, maximise, earlier)


def values(trial):
    return {key: float(value) for key, _, value in (each.partition("=") for each in trial.overrides)}


def bowl(trial):
    """Its lowest point is 0, at (0.3, −2)."""
    at = values(trial)
    return (at["x"] - 0.3) ** 2 + (at["y"] + 2) ** 2


def finished(trial, measure=bowl):
    return replace(trial, status=FINISHED, value=measure(trial))


def run(source, at_a_time=1, most=math.inf, end=finished):
    """The trials as they were told; with several at a time the one that has run longest ends first."""
    running, ended = [], []
    while len(ended) < most:
        while len(running) < at_a_time and (trial := source.next()):
            running.append(trial)
        if not running:
            break
        ended.append(end(running.pop(0)))
        source.told(ended[-1])
    return ended


def overrides_of(trials):
    return [trial.overrides for trial in trials]


# What is tried


def test_tpe_finds_the_lowest_point_of_a_known_function_and_beats_random():
    best = {
        method: [
            min(bowl(trial) for trial in run(opened(method, PLANE, trials=40, seed=seed)))
            for seed in range(5)
        ]
        for method in ("tpe", "random")
    }
    assert max(best["tpe"][:3]) < 0.02  # of 0 to 77 on this plane
    assert median(best["tpe"]) < 0.1 * median(best["random"])


def test_tpe_climbs_where_more_is_better():
    ended = run(
        opened("tpe", PLANE, trials=40, maximise=True),
        end=lambda trial: finished(trial, lambda trial: -bowl(trial)),
    )
    assert overrides_of(ended) == overrides_of(run(opened("tpe", PLANE, trials=40)))


def test_tpe_keeps_away_from_where_trainings_diverge():
    def search(value, status=FAILED):
        """How many of 40 trials diverge: right of x = 0.5, beside the lowest point."""
        ended = run(opened("tpe", PLANE, trials=40), end=lambda trial: diverges(trial, value, status))
        return sum(trial.status == status and trial.value != bowl(trial) for trial in ended)

    assert search(math.nan) == search(math.inf) == search(math.nan, FINISHED) <= 18
    assert search(None) >= 24  # of those that failed for another reason nothing is known


def diverges(trial, value, status, limit=0.5):
    if values(trial)["x"] <= limit:
        return finished(trial)
    return replace(trial, status=status, value=value, values={1.0: bowl(trial)})


def test_tpe_counts_those_that_run_as_bad_ones():
    def after(status):
        source = opened("tpe", PLANE, trials=14)
        run(source, most=12)
        running = source.next()
        if status:
            source.told(replace(running, status=status))
        return source.next()

    assert after(None).number == after(FAILED).number == 13
    assert after(None).overrides != after(FAILED).overrides


@pytest.mark.parametrize("method", ["tpe", "random", "asha"])
def test_the_same_seed_tries_the_same_and_another_something_else(method):
    first = run(opened(method, PLANE, seed=7))
    assert len(first) == 20
    assert [trial.number for trial in first] == list(range(20))
    assert {trial.overrides[2] for trial in first} == {"trainer.epochs=3"}
    assert overrides_of(run(opened(method, PLANE, seed=7))) == overrides_of(first)
    assert not set(overrides_of(run(opened(method, PLANE, seed=8)))) & set(overrides_of(first))


@pytest.mark.parametrize(
    ("method", "at_a_time"), [("random", 1), ("random", 4), ("tpe", 1), ("tpe", 4), ("asha", 1)]
)
def test_a_grid_is_tried_whole_each_point_once_in_a_random_order(method, at_a_time):
    source = opened(method, GRID)
    assert source.total == 12
    ended = overrides_of(run(source, at_a_time))
    everything = [(f"x={x}", f"y={y}") for x in (1, 2, 3) for y in range(4)]
    assert sorted(ended) == everything != ended
    assert overrides_of(run(opened(method, GRID, seed=1), at_a_time)) != ended
    assert overrides_of(run(opened(method, GRID, trials=100), at_a_time)) == ended


@pytest.mark.parametrize(
    ("method", "sweeps", "trials", "total"),
    [
        ("random", GRID, None, 12), ("random", GRID, 5, 5), ("random", GRID, 13, 12), ("random", PLANE, None, 20),
        ("asha", GRID, None, 12), ("asha", ("x=range(64)",), None, 64), ("asha", PLANE, 3, 3),
        ("tpe", GRID, None, 12), ("tpe", ("x=range(64)",), None, 20), ("tpe", ("x=range(64)",), 40, 40), ("tpe", PLANE, None, 20),
    ],
)  # fmt: skip
def test_how_many_trials_there_are(method, sweeps, trials, total):
    source = opened(method, sweeps, trials=trials)
    assert source.total == total
    ended = overrides_of(run(source, end=lambda trial: finished(trial, lambda trial: values(trial)["x"])))
    assert len(set(ended)) == len(ended) == total


def test_whole_numbers_of_an_interval_may_be_tried_twice_where_there_are_few():
    ended = overrides_of(
        run(
            opened("random", ("x=int(interval(1,3))",), trials=6),
            end=lambda trial: finished(trial, lambda trial: 0.0),
        )
    )
    assert len(ended) == 6
    assert set(ended) == {("x=1",), ("x=2",), ("x=3",)}


# Taken up again


@pytest.mark.parametrize(
    "sweeps", [PLANE, GRID, ("x=interval(-5,5)", "y=range(-5,6)"), ("x=range(30)", "y=range(30)")]
)
@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_search_that_was_left_goes_on_as_if_it_had_not_been(method, sweeps):
    whole = run(opened(method, sweeps, trials=24))
    first = run(opened(method, sweeps, trials=10))
    assert first == whole[:10]
    source = opened(method, sweeps, first[::-1], trials=24)
    assert source.total == len(whole)
    assert first + run(source) == whole


@pytest.mark.parametrize(("limit", "statuses"), [(0.5, {FINISHED, FAILED}), (-6, {FAILED})])
def test_a_search_whose_trainings_diverge_goes_on_as_if_it_had_not_been_left(limit, statuses):
    def end(trial):
        return diverges(trial, math.nan, FAILED, limit)

    whole = run(opened("tpe", PLANE, trials=24), end=end)
    assert {trial.status for trial in whole[:15]} == statuses
    again = run(opened("tpe", PLANE, whole[:15], trials=24), end=end)
    assert overrides_of(again) == overrides_of(whole[15:])


@pytest.mark.parametrize("status", [None, KILLED])
def test_interrupted_trials_come_first_with_their_numbers(status):
    whole = run(opened("tpe", PLANE, trials=24), 3)
    ended = run(opened("tpe", PLANE, trials=24), 3, most=15)  # and two more have begun
    begun = [Trial(trial.number, trial.overrides, status) for trial in whole[15:17]]
    source = opened("tpe", PLANE, [*begun, *ended], trials=24)
    assert source.total == 24
    assert ended + run(source, 3) == whole


def test_a_trial_that_is_interrupted_here_stays_open():
    source = opened("tpe", PLANE, trials=3)
    first = source.next()
    source.told(replace(first, status=KILLED))
    assert [source.next().number, source.next().number, source.next()] == [1, 2, None]
    source.told(finished(first))  # another process went on with it


def test_a_trial_outside_of_today_s_space_keeps_its_number():
    earlier = [finished(Trial(number, (f"x={number}", "y=0"))) for number in range(3)]
    source = opened("random", ("x=1,2", "y=0,1"), earlier)
    assert source.total == 5  # of four points two are known, and x=0 is none of them
    ended = run(source)
    assert [trial.number for trial in ended] == [3, 4]
    assert sorted(overrides_of(ended)) == [("x=1", "y=1"), ("x=2", "y=1")]
    assert (
        opened("random", ("x=1,2", "y=0,1"), earlier, trials=4).total == 4
    )  # where a number is said, it counts


def test_an_interrupted_trial_outside_of_today_s_space_is_not_tried_again():
    source = opened("random", ("x=1,2", "y=0,1"), [Trial(6, ("x=0", "y=0"))], trials=3)
    assert [trial.number for trial in run(source)] == [7, 8]


def test_nothing_is_left_to_try_where_all_was_tried():
    ended = run(opened("random", GRID))
    source = opened("random", GRID, ended)
    assert (source.total, source.next()) == (12, None)
    assert opened("random", PLANE, ended, trials=5).total == 12


# Errors


@pytest.mark.parametrize(
    ("method", "sweeps", "said"),
    [
        ("tpe", ("seed=1",), "search.method=tpe: no key has several values to search over; type optimizer.lr=0.1,0.01, or 'optimizer.lr=tag(log,interval(0.001,1))'"),
        ("random", (), "search.method=random: no key has several values to search over; type optimizer.lr=0.1,0.01, or 'optimizer.lr=tag(log,interval(0.001,1))'"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_refused_in_a_line(method, sweeps, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        opened(method, sweeps)
