"""A schedule that goes on with other lengths stands where one that always had them would stand."""

import copy

import pytest
from torch.optim import lr_scheduler

from runner.schema import Interval
from tests.test_schedule import KINDS, LOSSES, PEAK, close, cosine, lrs, make, one_cycle

PER_EPOCH, WARM_UP = 3, 4
FIXED = {name: kind for name, kind in KINDS.items() if name not in ("cosine", "one_cycle", "plateau")}
SCALED = {  # by the length after the warm-up
    "cosine": cosine,
    "one cycle": one_cycle,
    "polynomial": lambda length: lambda o: lr_scheduler.PolynomialLR(o, length, power=2.0),
    "linear": lambda length: lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, length),
}


def made(kind, total, per_epoch=PER_EPOCH, interval=Interval.step, warmup=WARM_UP, lr=PEAK):
    return make(kind, interval, warmup, per_epoch=per_epoch, lr=lr, second=lr / 8, total_steps=total)


def gone_on(before, after, steps, stands_at=None, losses=()):
    """`after`, with the state that `before` has after so many steps; it counts as its `stands_at`-th."""
    optimizer, schedule = before
    lrs(optimizer, schedule, steps, losses=losses)
    saved = copy.deepcopy([optimizer.state_dict(), schedule.state_dict()])
    after[0].load_state_dict(saved[0])
    after[1].resume(saved[1], steps if stands_at is None else stands_at)
    return after


def groups_of(optimizer):
    return [
        {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
    ]


def taken_to(made, steps):
    lrs(*made, steps)
    return made


@pytest.mark.parametrize("interval", list(Interval))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 2, 5, 9])
def test_with_the_same_lengths_nothing_is_computed_anew(steps, kind, interval):
    def fresh():
        return made(KINDS[kind], 12 if kind == "one_cycle" else 15, interval=interval)

    expected = fresh()
    lrs(*expected, steps, losses=LOSSES)
    optimizer, schedule = gone_on(fresh(), fresh(), steps, losses=LOSSES)
    assert groups_of(optimizer) == groups_of(expected[0])
    assert schedule.state_dict() == expected[1].state_dict()


@pytest.mark.parametrize("interval", list(Interval))
@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("steps", [0, 2, 4, 5, 9])
def test_a_longer_run_changes_no_bit_where_the_scheduler_has_no_length(steps, kind, interval):
    optimizer, schedule = gone_on(
        made(KINDS[kind], 12, interval=interval), made(KINDS[kind], 30, interval=interval), steps
    )
    expected = taken_to(made(KINDS[kind], 30, interval=interval), steps)
    assert groups_of(optimizer) == groups_of(expected[0])
    assert lrs(optimizer, schedule, 20) == lrs(*expected, 20)


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("steps", [0, 3, 4, 8, 12])
def test_a_longer_run_goes_on_where_a_longer_schedule_stands(kind, steps):
    longer = made(SCALED[kind](26), 30)
    optimizer, schedule = gone_on(made(SCALED[kind](8), 12), made(SCALED[kind](26), 30), steps)
    taken_to(longer, steps)
    assert groups_of(optimizer) == groups_of(longer[0])  # the momenta of one_cycle among them
    assert lrs(optimizer, schedule, 30 - steps) == lrs(*longer, 30 - steps)


@pytest.mark.parametrize("kind", SCALED)
def test_another_batch_goes_on_at_its_own_place_with_its_own_peak(kind):
    """7 steps of 5 an epoch, in the second one; with twice the batch that is the 4th step of 3 an epoch."""
    expected = taken_to(made(SCALED[kind](12), 15, per_epoch=3, warmup=3, lr=2 * PEAK), 4)
    optimizer, schedule = gone_on(
        made(SCALED[kind](20), 25, per_epoch=5, warmup=5),
        made(SCALED[kind](12), 15, per_epoch=3, warmup=3, lr=2 * PEAK),
        7,
        stands_at=4,
    )
    assert groups_of(optimizer) == groups_of(expected[0])
    assert lrs(optimizer, schedule, 11) == lrs(*expected, 11)


def test_another_batch_within_the_warm_up():
    optimizer, schedule = gone_on(
        made(cosine(20), 25, warmup=5), made(cosine(12), 15, warmup=3), 2, stands_at=1
    )
    expected = [PEAK * (0.25 + 0.75 * step / 3) for step in (1, 2, 3)]
    assert lrs(optimizer, schedule, 3) == close(expected)


PLATEAU = KINDS["plateau"]


@pytest.mark.parametrize("steps", [2, 4, 5, 9, 11])
@pytest.mark.parametrize(("peak", "factor"), [(PEAK, 0.5), (0.3, 0.9), (0.15, 0.9)])
def test_a_longer_run_changes_no_bit_of_a_plateau(steps, peak, factor):
    """0.3 × 0.9 × 0.9 / 0.3 × 0.3 is another number."""

    def fresh(total):
        plateau = lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=factor)  # noqa: E731
        return made(plateau, total, lr=peak)

    whole = fresh(30)
    expected = lrs(*whole, 16, losses=LOSSES)
    optimizer, schedule = gone_on(fresh(12), fresh(30), steps, losses=LOSSES)
    assert lrs(optimizer, schedule, 16 - steps, steps, LOSSES) == expected[steps:]
    assert schedule.state_dict() == whole[1].state_dict()


def test_a_plateau_keeps_its_reductions_relative_to_the_peak_and_what_it_has_measured():
    """Without a warm-up it is halved after steps 4, 7 and 11 (see test_schedule)."""
    optimizer, schedule = gone_on(
        made(PLATEAU, 16, warmup=0), made(PLATEAU, 8, warmup=0, lr=2 * PEAK), 10, stands_at=5, losses=LOSSES
    )
    assert [group["lr"] for group in optimizer.param_groups] == close([2 * PEAK / 4, 2 * PEAK / 8 / 4])
    # The best so far is 6.0, after step 9, and step 10 was no better: one more that is not, and it is halved again.
    assert lrs(optimizer, schedule, 2, 10, LOSSES) == close([2 * PEAK / 4, 2 * PEAK / 8])


def test_a_plateau_within_the_warm_up_of_another_batch():
    optimizer, schedule = gone_on(made(PLATEAU, 16), made(PLATEAU, 16, lr=2 * PEAK), 2)
    assert lrs(optimizer, schedule, 3) == close([2 * PEAK * part for part in (0.625, 0.8125, 1.0)])
