"""The plan of a training that goes on with other workers."""

import pytest

from runner.executor_schema import Keep
from runner.plan import START, DataFacts, Position, make_plan
from runner.resize import line, resized
from runner.resources import plan_resources
from tests.fakes import LAPTOP, make_experiment

DATA = DataFacts(200, 10, (1,), 2)


def planned(**settings):
    sizes = {"scaling.num_workers": 2, "trainer.batch_size": 16, "trainer.epochs": 5}
    experiment = make_experiment(
        {**sizes, **{key.replace("__", "."): value for key, value in settings.items()}}
    )
    return experiment, make_plan(experiment, DATA, plan_resources(experiment, LAPTOP))


def by(workers, position=START, **settings):
    experiment, plan = planned(**settings)
    return resized(experiment, plan, DATA, workers, position)[1]


@pytest.mark.parametrize(
    ("workers", "rows", "accumulated"),
    [(1, 16, 2), (2, 16, 1), (3, 11, 1), (4, 8, 1), (5, 7, 1)],
)
def test_a_global_batch_is_split_anew_and_stays_as_it_is(workers, rows, accumulated):
    _, before = planned()
    plan = by(workers, Position(1, 9, 64))
    assert (plan.num_workers, plan.batch_size, plan.accumulation_steps) == (workers, rows, accumulated)
    kept = ("global_batch_size", "total_steps", "steps_per_epoch", "schedule_offset", "learning_rate")
    assert [getattr(plan, key) for key in kept] == [getattr(before, key) for key in kept]


def test_more_rows_a_worker_than_trainer_batch_size_says_never_go_through_the_model_at_once():
    plan = by(3, trainer__accumulation_steps=4)  # 128 rows: 43 for one of three workers
    assert (plan.batch_size, plan.accumulation_steps) == (15, 3)


def test_a_worker_keeps_its_batch_and_the_lr_follows_the_rule():
    position = Position(1, 9, 64)  # 136 rows of the second epoch are left
    plan = by(3, position, executor__keep=Keep.per_worker_batch)
    assert (plan.batch_size, plan.global_batch_size) == (16, 48)
    assert plan.learning_rate.multiplier == 3  # linear
    assert plan.total_steps == 9 + 3 + 3 * 5
    assert plan.schedule_offset == plan.offset_at(position)


def test_the_same_workers_have_the_same_plan():
    _, plan = planned()
    assert by(2) == plan
    assert by(2, executor__keep=Keep.per_worker_batch) == plan


def test_a_change_in_a_line():
    lr = "lr 0.1 (base, batch 16) × 2 (linear: 32/16) = 0.2"
    said = "goes on from step 9 with 3 workers instead of 2: global batch 32 = 3 workers × up to 11 rows; "
    assert line(by(3), 9, 2) == said + lr
    said = "goes on from step 0 with 1 worker: global batch 32 = 1 worker × 16 rows × 2 accumulated; "
    assert line(by(1), 0, None) == said + lr
