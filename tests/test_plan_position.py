"""The plan of a training that goes on: what is left of an epoch, and how long the rest is, by hand."""

import dataclasses

import pytest

from runner.plan import DataFacts, Position, make_plan
from runner.resources import plan_resources
from tests.fakes import LAPTOP, make_experiment


def plan_at(position, workers=2, rows=50, batch=5, **settings):
    """Of 5 epochs; a global batch of 10 by default."""
    sizes = {"scaling.num_workers": workers, "trainer.batch_size": batch, "trainer.epochs": 5}
    experiment = make_experiment({**sizes, **{k.replace("__", "."): v for k, v in settings.items()}})
    return make_plan(experiment, DataFacts(rows, 7, (1,), 1), plan_resources(experiment, LAPTOP), position)


def at(*position, **settings):
    """(steps of an epoch, left of that which has begun, its rows at the end, all steps, epochs, offset)"""
    plan = plan_at(Position(*position), **settings)
    left = plan.steps_left(position[2])
    return (
        plan.steps_per_epoch,
        left,
        plan.rows_at_end(position[2]),
        plan.total_steps,
        plan.epochs,
        plan.schedule_offset,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # As before: nothing is counted anew, wherever it stands.
        (at(0, 0, 0), (5, 5, 50, 25, 5, 0)),
        (at(1, 7, 20), (5, 3, 50, 25, 5, 0)),
        (at(2, 10, 0), (5, 5, 50, 25, 5, 0)),
        (at(5, 25, 0), (5, 5, 50, 25, 5, 0)),
        (at(1, 7, 10, rows=53), (6, 5, 53, 30, 5, 0)),
        # From 2 workers, after 7 steps: 30 rows are left of the second epoch, then three epochs more.
        (at(1, 7, 20, workers=1), (10, 6, 50, 7 + 6 + 30, 5, 20 - 6 - 7)),
        (at(1, 7, 20, workers=3), (4, 2, 50, 7 + 2 + 12, 5, 8 - 2 - 7)),
        (at(1, 7, 20, workers=4), (3, 2, 50, 7 + 2 + 9, 5, 6 - 2 - 7)),
        (at(2, 10, 0, workers=4), (3, 3, 50, 10 + 9, 5, 6 - 10)),
        # Fewer epochs than have begun
        (at(3, 15, 0, trainer__epochs=2), (5, 5, 50, 10, 2, 0)),
        # drop_last: 47 rows; steps of 10 leave 7, steps of 20 leave as many.
        (at(1, 6, 20, rows=47, dataset__drop_last=True), (4, 2, 40, 20, 5, 0)),
        (at(1, 6, 20, rows=47, workers=4, dataset__drop_last=True), (2, 1, 40, 6 + 1 + 6, 5, 4 - 1 - 6)),
        (at(1, 7, 30, rows=47, workers=4, dataset__drop_last=True), (2, 0, 30, 7 + 0 + 6, 5, 4 - 0 - 7)),
        (at(1, 7, 30, rows=47, workers=8, dataset__drop_last=True), (1, 0, 30, 7 + 0 + 3, 5, 2 - 0 - 7)),
        # limit_batches counts steps: with another batch an epoch has other rows.
        (at(1, 4, 10, trainer__limit_batches=3), (3, 2, 30, 15, 5, 0)),
        (at(1, 4, 10, workers=1, trainer__limit_batches=3), (3, 1, 15, 4 + 1 + 9, 5, 6 - 1 - 4)),
        (at(1, 5, 20, workers=1, trainer__limit_batches=3), (3, 0, 20, 5 + 0 + 9, 5, 6 - 0 - 5)),
        # max_steps is what it says; the epochs are those that it begins.
        (at(0, 0, 0, trainer__max_steps=12), (5, 5, 50, 12, 3, 0)),
        (at(1, 7, 20, trainer__max_steps=9), (5, 3, 50, 9, 2, 0)),
        (at(1, 7, 20, trainer__max_steps=10), (5, 3, 50, 10, 2, 0)),
        (at(1, 7, 20, trainer__max_steps=11), (5, 3, 50, 11, 3, 0)),
        (at(1, 7, 20, workers=4, trainer__max_steps=13), (3, 2, 50, 13, 4, -3)),
    ],
)  # fmt: skip
def test_what_is_left_from_a_position(found, expected):
    assert found == expected


@pytest.mark.parametrize("settings", [{}, {"dataset__drop_last": True}, {"trainer__limit_batches": 3}])
@pytest.mark.parametrize("rows", [40, 47, 50, 51])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_the_offset_is_the_same_at_every_later_position(workers, rows, settings):
    begun = Position(1, 6, 20)
    plan = plan_at(begun, workers=workers, rows=rows, **settings)
    epoch, done = begun.epoch, begun.rows
    for step in range(begun.step, plan.total_steps + 1):
        assert plan.offset_at(Position(epoch, step, done)) == plan.schedule_offset
        again = plan_at(Position(epoch, step, done), workers=workers, rows=rows, **settings)
        assert (again.total_steps, again.schedule_offset) == (plan.total_steps, plan.schedule_offset)
        if not plan.steps_left(done):  # the epoch is over
            epoch, done = epoch + 1, 0
        is_last = plan.steps_left(done) == 1
        epoch, done = (epoch + 1, 0) if is_last else (epoch, done + plan.global_batch_size)
        assert (epoch == 5) == (step + 1 == plan.total_steps) or step == plan.total_steps


def test_a_plan_of_other_workers_does_not_take_an_earlier_position_for_its_own():
    plan = plan_at(Position(1, 7, 20), workers=4)
    assert plan.offset_at(Position(1, 7, 20)) == plan.offset_at(Position(2, 9, 0)) == plan.schedule_offset
    for earlier in (Position(0, 0, 0), Position(0, 4, 40), Position(1, 5, 0), Position(1, 6, 10)):
        assert plan.offset_at(earlier) != plan.schedule_offset


def test_a_scheduler_s_length_is_that_of_a_training_that_always_had_this_batch():
    scheduler = make_experiment().scheduler
    for workers, length in ((1, 50), (2, 25), (3, 20), (4, 15)):
        plan = plan_at(Position(1, 7, 20), workers=workers)
        assert plan.for_scheduler(scheduler)["T_max"] == length == 5 * plan.steps_per_epoch


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [5, 10, 15, 20, 25]),
        ({"validate_every_epochs": 2}, [10, 20, 25]),
        ({"validate_every_steps": 4}, [4, 8, 12, 16, 20, 24, 25]),
        ({"validate_every_steps": 4, "validate_every_epochs": 2}, [4, 8, 12, 16, 20, 24, 25]),
        ({"validate_every_epochs": 9}, [25]),
    ],
)
def test_when_to_validate(settings, expected):
    plan = dataclasses.replace(plan_at(Position()), **settings)
    steps = range(1, 26)
    assert [s for s in steps if plan.is_over(s) or plan.validates(s // 5, s, s % 5 == 0)] == expected


def test_the_identity_of_the_data_is_plain_json():
    facts = DataFacts(10, 5, (1, 8, 8), 10, class_counts=(3, 7), class_names=("a", "b"))
    assert facts.identity() == {
        "train_rows": 10,
        "val_rows": 5,
        "input_shape": [1, 8, 8],
        "out_features": 10,
        "class_counts": [3, 7],
    }
