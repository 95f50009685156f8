"""An epoch that is entered in the middle goes on with exactly the batches that would have come."""

import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from runner.errors import TrainingError
from runner.ingest.batches import Place
from runner.ingest.checks import Check
from runner.ingest.dataloader import LoaderIngest
from runner.ingest.ray_data import RayDataIngest
from runner.ingest.rows import Arrays, Items
from runner.ingest.tensors import TensorIngest
from runner.profile import ProfiledIngest
from runner.schema import Task
from tests.fakes import plan_of

CPU = Place(torch.device("cpu"))
EPOCH, SEED = 3, 7
LIMITS = {
    "all rows": {},
    "drop_last": {"dataset.drop_last": True},
    "limit_batches": {"trainer.limit_batches": 3},
    "limit_batches beyond the short one": {"trainer.limit_batches": 100},
}


class Drawn:
    """Row i is [i, three random numbers], its target i."""

    def __init__(self, rows):
        self.rows = rows
        self.asked = []

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        self.asked.append(row)
        return [row, random.random(), np.random.random(), torch.rand(1).item()], row


def items(rows):
    return Items(Drawn(rows), rows, Check(Task.regression, "train"))


def in_memory(plan, rank, rows):
    return TensorIngest({"train": rows, "val": rows}, plan, SEED, rank, CPU)


def loaded(plan, rank, rows, workers=0):
    return LoaderIngest({"train": rows, "val": rows}, plan, SEED, rank, CPU, workers)


def content(steps):
    """All that a rank gets, step by step; floats as they are, so that equal means bit for bit."""
    return [
        [(b.inputs.tolist(), b.targets.tolist(), b.counted, b.global_rows) for b in step] for step in steps
    ]


def plan_with(rows, workers=1, accumulation=1, batch=2, **settings):
    sizes = {"scaling.num_workers": workers, "trainer.batch_size": batch}
    return plan_of({**sizes, "trainer.accumulation_steps": accumulation, **settings}, rows=rows, val_rows=5)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [24, 49, 53, 72])  # 49 = 48 + 1: ranks and micro-batches without rows
def test_the_rest_of_an_epoch_is_its_tail(rows, workers, accumulation, limits):
    plan, split = plan_with(rows, workers, accumulation, **LIMITS[limits]), items(rows)
    memory = Arrays(*split.read(0, rows))
    for rank in range(workers):
        for ingest in (in_memory(plan, rank, memory), loaded(plan, rank, memory), loaded(plan, rank, split)):
            whole = content(ingest.steps(EPOCH))
            assert len(whole) == plan.steps_per_epoch
            for step in range(plan.steps_per_epoch + 1):
                assert content(ingest.steps(EPOCH, step * plan.global_batch_size)) == whole[step:]


@pytest.mark.parametrize("done", [1, 11, 12, 13, 30, 52, 53])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_another_number_of_workers_takes_the_same_rest(workers, done):
    """`done` need not be a multiple of the batch: its rows were cut by a run with another one."""
    one, several = plan_with(53, batch=12), plan_with(53, workers, batch=12 // workers)
    memory = Arrays(*items(53).read(0, 53))
    expected = [(b.inputs.tolist(), b.global_rows) for (b,) in in_memory(one, 0, memory).steps(EPOCH, done)]
    ranks = [in_memory(several, rank, memory).steps(EPOCH, done) for rank in range(workers)]
    found = []
    for steps in zip(*ranks, strict=True):
        counted = [b.inputs.tolist() for (b,) in steps if b.counted]
        found.append(([row for rows in counted for row in rows], steps[0][0].global_rows))
    assert found == expected
    assert sum(rows for _, rows in found) == 53 - done


def test_only_the_rest_is_read():
    plan, split = plan_with(53, workers=2, batch=6), items(53)
    whole = content(loaded(plan, 1, split).steps(EPOCH))
    asked = list(split.found.asked)
    split.found.asked.clear()
    assert content(loaded(plan, 1, split).steps(EPOCH, 24)) == whole[2:]
    assert split.found.asked == asked[-len(split.found.asked) :]
    assert len(split.found.asked) == sum(
        len(b.inputs) for step in loaded(plan, 1, split).steps(EPOCH, 24) for b in step
    )


def test_processes_of_the_loader_read_the_rest_alone():
    plan, split = plan_with(53, workers=2, batch=6), items(53)
    whole = content(loaded(plan, 1, split).steps(EPOCH))
    ingest = loaded(plan, 1, split, workers=2)
    try:
        with drawing_nothing():
            assert content(ingest.steps(EPOCH, 24)) == whole[2:]
        left = ingest.steps(EPOCH)
        next(left)
        assert content(ingest.steps(EPOCH, 36)) == whole[3:]
    finally:
        ingest.close()


@contextmanager
def drawing_nothing():
    """Fails where the global random numbers are not as they were."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random_state()
    yield
    assert random_state() == before


def random_state():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("done", [0, 24, 53])
@pytest.mark.parametrize("ingest", [in_memory, loaded])
def test_an_iterator_draws_none_of_the_training_s_random_numbers(ingest, done):
    plan, split = plan_with(53, batch=12), items(53)
    with drawing_nothing():
        mine = ingest(plan, 0, split)
        mine.order(EPOCH)
        steps = mine.steps(EPOCH, done)
        next(steps, None)
        list(steps), list(mine.evaluation())


def test_random_numbers_restored_around_a_running_iterator_stay():
    """The checkpoint's are set before or after the first batch is drawn: what the training draws is the same."""
    plan, split = plan_with(53, batch=12), items(53)
    drawn = []
    for restored_first in (True, False):
        steps = loaded(plan, 0, split).steps(EPOCH, 24)
        if restored_first:
            torch.manual_seed(5)
            next(steps)
        else:
            next(steps)
            torch.manual_seed(5)
        drawn.append([torch.rand(2).tolist() for _ in steps])
    assert drawn[0] == drawn[1]


def test_a_profiled_ingest_goes_on_too(tmp_path):
    plan, memory = plan_with(53, batch=12), Arrays(*items(53).read(0, 53))
    inner = in_memory(plan, 0, memory)
    profiled = ProfiledIngest(inner, 2, tmp_path / "trace.json")
    assert content(profiled.steps(EPOCH, 24)) == content(inner.steps(EPOCH))[2:]
    assert (tmp_path / "trace.json").exists()
    assert content(profiled.steps(EPOCH, 36)) == content(inner.steps(EPOCH))[3:]
    assert profiled.order(EPOCH) == inner.order(EPOCH) == (53, 0)


def test_a_stream_goes_on_after_whole_global_batches_only():
    ingest = RayDataIngest({}, {}, plan_with(53, workers=2, batch=6), SEED, 0, CPU)
    with pytest.raises(TrainingError) as refused:
        next(ingest.steps(EPOCH, 18))
    assert str(refused.value) == (
        "dataset.ingest=ray_data: an epoch goes on after whole global batches of 12 rows, not after 18 rows"
    )
    assert ingest.order(EPOCH) == (53, 0)
