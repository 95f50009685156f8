"""Ranks whose epochs would differ are told so before the epoch (FAULTS row 9), in the same words on all of them."""

import dataclasses

import pytest
import torch

from runner.errors import TrainingError
from runner.ingest.agreement import compare_orders
from runner.ingest.batches import placement
from runner.ingest.tensors import TensorIngest
from tests.fakes import on_ranks, plan_for
from tests.goings_on import SEED, Case
from tests.lockstep import in_lockstep

REMEDY = "dataset: its sampler must give all ranks the same rows"


class Ordered:
    """Of an ingest, only what its order is."""

    def __init__(self, rows, digest=0):
        self._order = rows, digest

    def order(self, epoch):
        return self._order


def compared(orders, plan, epoch=4):
    """What each rank raises."""

    def rank(communicator):
        try:
            compare_orders(Ordered(*orders[communicator.rank]), plan, epoch, communicator)
        except TrainingError as error:
            return str(error)
        return None

    return on_ranks(len(orders), rank)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_equal_orders_are_no_error(ranks):
    plan = plan_for(ranks, 8, rows=50)
    assert compared([(50, 2**32 - 1)] * ranks, plan) == [None] * ranks


@pytest.mark.parametrize(
    ("rows", "steps"),
    [([50, 50, 48], "rank 0 3, rank 1 3, rank 2 2"), ([1, 100, 25], "rank 0 1, rank 1 5, rank 2 2")],
)
def test_other_lengths_are_an_error_with_the_steps_of_all_ranks(rows, steps):
    plan = plan_for(3, 8, rows=50)  # a global batch of 24
    line = f"epoch 4: the ranks' steps differ ({steps}); {REMEDY}"
    assert compared([(each, 1) for each in rows], plan) == [line] * 3


def test_steps_are_counted_without_a_short_batch_that_is_dropped():
    plan = dataclasses.replace(plan_for(2, 12, rows=50), drop_last=True)
    assert compared([(50, 1), (47, 1)], plan)[0].startswith(
        "epoch 4: the ranks' steps differ (rank 0 2, rank 1 1)"
    )


@pytest.mark.parametrize("orders", [[(50, 1), (50, 2)], [(50, 1), (49, 1)]])  # three steps each
def test_other_rows_in_as_many_steps_are_an_error_too(orders):
    line = f"epoch 4: the ranks' rows differ; {REMEDY}"
    assert compared(orders, plan_for(2, 12, rows=50)) == [line] * 2


@pytest.mark.parametrize("differs", ["rows", "length"])
def test_a_training_ends_before_the_epoch_whose_sampler_differs_between_ranks(differs):
    """Not in its middle, where ranks would wait for each other: the last complete epoch is reported, and no step more."""
    case = Case({"trainer.epochs": 3, "trainer.batch_size": 6}, workers=2)
    seen = []

    def rank(communicator):
        def sampler(epoch):
            if epoch < 2 or communicator.rank == 0:
                return range(case.rows)
            return range(case.rows)[::-1] if differs == "rows" else range(20)

        training, _ = case.begin(communicator)
        place = placement(case.experiment, torch.device("cpu"))
        ingest = TensorIngest(case.splits(), case.plan, SEED, communicator.rank, place, sampler)
        try:
            case.go(training, ingest, communicator)
        finally:
            seen.append((communicator.rank, training.state.step, training.state.rows, len(training.history)))

    expected = {"rows": "the ranks' rows differ", "length": r"the ranks' steps differ \(rank 0 3, rank 1 2\)"}
    with pytest.raises(TrainingError, match=rf"^epoch 2: {expected[differs]}; {REMEDY}$"):
        in_lockstep(2, rank)
    assert sorted(seen) == [(0, 6, 0, 3), (1, 6, 0, 3)]  # the first LR and two reports
