"""Ray Data ingest on a real Ray: every row once an epoch on its own rank, repeatable, larger than memory."""

from __future__ import annotations

import gc
import random
import threading
import time

import numpy as np
import pytest
import torch

from runner.errors import TrainingError
from runner.ingest.batches import Place
from runner.ingest.checks import Check
from runner.ingest.rows import Arrays, Items, Source
from runner.schema import Task
from tests.fakes import plan_for, plan_of
from tests.test_mid_epoch import content, drawing_nothing

# Ray Data leaves its own log files open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*ray-data:pytest.PytestUnraisableExceptionWarning"
)
CPU = Place(torch.device("cpu"))
REGRESSION = Check(Task.regression, "train")


class Table:
    """A source whose row i is [i, …] with target i, `width` numbers wide."""

    def __init__(self, rows, width=1, bad=None):
        self.rows, self.width, self.bad = rows, width, bad

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        if self.bad is not None and start <= self.bad < stop:
            raise ValueError(f"/data/a.csv: row {self.bad}: 'q' is no number")
        numbers = np.arange(start, stop, dtype=np.float32)[:, None]
        return np.broadcast_to(numbers, (stop - start, self.width)), numbers


class Drawing(Table):
    """A map-style Dataset that draws a number a row."""

    def __getitem__(self, row):
        return [row, random.random()], row


def source(rows, **settings):
    return Source(Table(rows, **settings), rows, REGRESSION)


def arrays(rows):
    numbers = np.arange(rows, dtype=np.float32)[:, None]
    return Arrays(numbers, numbers.copy())


@pytest.fixture(scope="module")
def _ray():
    import ray

    from runner.executors import ray_cluster

    is_ours = not ray.is_initialized()
    ray_cluster.start(None, 2, (), verbose=False)
    yield
    gc.collect()
    if is_ours:
        ray.shutdown()


def ranks_of(plan, train, val, seed=7, shuffle_rows=None):
    from runner.ingest import ray_data

    splits = {"train": train, "val": val}
    shards = ray_data.data_config(plan).configure(
        ray_data.datasets(splits, plan, seed), plan.num_workers, None, None
    )
    kept = ray_data.kept(splits)
    return [
        ray_data.RayDataIngest(shards[rank], kept, plan, seed, rank, CPU, shuffle_rows)
        for rank in range(plan.num_workers)
    ]


def numbers(steps):
    return [int(row) for step in steps for b in step if b.counted for row in b.targets[:, 0].tolist()]


@pytest.mark.parametrize("kind", [arrays, source])
@pytest.mark.usefixtures("_ray")
def test_1003_rows_on_3_workers_are_each_used_once_an_epoch_and_repeat_exactly(kind):
    plan = plan_for(3, 4, 2, rows=1003, val_rows=10)
    first, again = ranks_of(plan, kind(1003), kind(10)), ranks_of(plan, kind(1003), kind(10))
    epochs = {epoch: [list(ingest.steps(epoch)) for ingest in first] for epoch in (0, 1)}
    for epoch, ranks in epochs.items():
        assert sorted(number for steps in ranks for number in numbers(steps)) == list(range(1003))
        assert {len(steps) for steps in ranks} == {plan.steps_per_epoch}
        assert {len(step) for steps in ranks for step in steps} == {2}
        batches = [batch for steps in ranks for step in steps for batch in step]
        assert {(b.inputs.dtype, b.inputs.shape[1:]) for b in batches} == {(torch.float32, (1,))}
        assert all(torch.equal(b.inputs, b.targets) and b.inputs.is_contiguous() for b in batches)
        last = [step[index] for step in (steps[-1] for steps in ranks) for index in range(2)]
        assert {b.global_rows for b in last} == {1003 % 24}
        assert sum(len(b.inputs) for b in last if b.counted) == 1003 % 24
        assert [numbers(ingest.steps(epoch)) for ingest in again] == [numbers(steps) for steps in ranks]
    # A rank keeps its rows from epoch to epoch, in another order.
    for before, after in zip(epochs[0], epochs[1], strict=True):
        assert sorted(numbers(before)) == sorted(numbers(after))
        assert numbers(before) != numbers(after)


@pytest.mark.parametrize("kind", [arrays, source])
@pytest.mark.usefixtures("_ray")
def test_evaluation_reads_every_row_once_and_in_order(kind):
    ingests = ranks_of(plan_for(3, 4, rows=20, val_rows=2003), kind(20), kind(2003))
    for _ in range(2):
        rows = [int(row) for i in ingests for inputs, _ in i.evaluation() for row in inputs[:, 0].tolist()]
        assert rows == list(range(2003))


@pytest.mark.usefixtures("_ray")
def test_ranks_without_rows_take_their_steps():
    plan = plan_for(3, 4, rows=2, val_rows=1)
    ingests = ranks_of(plan, source(2), source(1))
    steps = [list(ingest.steps(0)) for ingest in ingests]
    assert [[b.counted for (b,) in mine] for mine in steps] == [[False], [True], [True]]
    assert sorted(row for mine in steps for row in numbers(mine)) == [0, 1]
    assert [[inputs.tolist() for inputs, _ in ingest.evaluation()] for ingest in ingests] == [
        [],
        [],
        [[[0.0]]],
    ]


@pytest.mark.usefixtures("_ray")
def test_what_a_streamed_dataset_draws_differs_between_epochs_and_repeats():
    rows = Items(Drawing(40), 40, REGRESSION)
    (ingest,) = ranks_of(plan_for(1, 8, rows=40, val_rows=40), rows, rows)

    def drawn(epoch):
        return {
            int(number): draw
            for step in ingest.steps(epoch)
            for b in step
            for number, draw in b.inputs.tolist()
        }

    zero, one = drawn(0), drawn(1)
    assert drawn(0) == zero
    assert all(zero[row] != one[row] for row in range(40))
    assert dict(rows.read(0, 40, seed=7)[0].tolist()) == zero  # as any other ingest draws them
    (validation,) = (dict(inputs.tolist()) for inputs, _ in ingest.evaluation())
    assert validation == zero


@pytest.mark.usefixtures("_ray")
def test_shuffle_rows_is_how_far_rows_are_mixed():
    plan = plan_for(1, 8, rows=16_384)
    far, near = (
        numbers(ranks_of(plan, arrays(16_384), arrays(1), shuffle_rows=rows)[0].steps(0))
        for rows in (16_384, 8)
    )
    assert sorted(far) == sorted(near)
    assert max(near[:512]) < 2 * 4096  # blocks are mixed among their neighbours
    assert max(far[:512]) > 12_000


def test_large_rows_are_shuffled_among_fewer():
    from runner.ingest.ray_data import RayDataIngest

    def buffered(width):
        rows = Arrays(np.zeros((1, width), np.float32), np.zeros(1, np.int64))
        return RayDataIngest({}, {"train": rows}, plan_for(1, 4), 0, 0, CPU)._buffered(mine=4)

    assert buffered(1) == 32 * 4
    assert buffered(2**20) == 63  # 4 MB a row, 256 MB


@pytest.mark.usefixtures("_ray")
def test_validation_streams_beside_paused_training_streams():
    """Training streams of both ranks stop half-way with full buffers; the reading tasks must leave a CPU free."""
    plan = plan_for(2, 32, rows=20_000, val_rows=3001)
    ingests = ranks_of(plan, source(20_000, width=4096), source(3001, width=4096))  # 330 MB, 50 MB
    running = [ingest.steps(0) for ingest in ingests]
    for steps in running:
        next(steps)
    assert sum(len(inputs) for ingest in ingests for inputs, _ in ingest.evaluation()) == 3001
    assert sum(1 for steps in running for _ in steps) == 2 * (plan.steps_per_epoch - 1)


@pytest.mark.usefixtures("_ray")
def test_a_bad_row_of_a_source_arrives_in_one_line_of_its_own_words():
    (ingest,) = ranks_of(plan_for(1, 4, rows=2000), source(2000, bad=1500), arrays(1))
    with pytest.raises(TrainingError) as failed:
        list(ingest.steps(0))
    assert str(failed.value) == (
        "dataset: rows 1024 to 1535 of split train: /data/a.csv: row 1500: 'q' is no number"
    )


@pytest.mark.usefixtures("_ray")
def test_a_missing_row_is_an_error_that_names_the_rank():
    plan, more = plan_for(2, 4, rows=20), plan_for(2, 4, rows=24)
    ingest = ranks_of(plan, arrays(20), arrays(1))[1]
    ingest._plan = more
    with pytest.raises(TrainingError, match="Ray Data gave rank 1 2 rows of 4 at step 2"):
        list(ingest.steps(0))


@pytest.mark.usefixtures("_ray")
def test_nothing_runs_on_when_an_epoch_is_left_early():
    (ingest,) = ranks_of(plan_for(1, 4, rows=5000), source(5000, width=64), arrays(1))
    steps = ingest.steps(0)
    next(steps)
    steps.close()
    gc.collect()
    until = time.time() + 20
    while any(thread.name.startswith("StreamingExecutor") for thread in threading.enumerate()):
        assert time.time() < until
        time.sleep(0.05)
    assert len(numbers(ingest.steps(0))) == 5000


@pytest.mark.usefixtures("_ray")
def test_the_driver_reads_no_more_of_a_stream_than_its_first_row():
    asked = []

    class Watched(Table):
        def read(self, start, stop):
            asked.append(stop - start)
            return super().read(start, stop)

    from runner.ingest import ray_data

    splits = dict.fromkeys(("train", "val"), Source(Watched(5000), 5000, REGRESSION))
    ray_data.datasets(splits, plan_for(2, 4, rows=5000, val_rows=5000), 0)
    ray_data.kept(splits)
    assert max(asked) <= ray_data.KEPT_ROWS
    assert ray_data.streams(splits) == ["train", "val"]
    assert ray_data.streams({"train": source(3), "val": arrays(3)}) == ["train"]


@pytest.mark.parametrize("settings", [{}, {"dataset.drop_last": True}, {"trainer.limit_batches": 5}])
@pytest.mark.parametrize("kind", [arrays, source])
@pytest.mark.usefixtures("_ray")
def test_an_epoch_entered_in_the_middle_goes_on_with_the_same_batches(kind, settings):
    """145 = 6 × 24 + 1: at the end only one rank has a row."""
    sizes = {"scaling.num_workers": 3, "trainer.batch_size": 4, "trainer.accumulation_steps": 2}
    plan = plan_of({**sizes, **settings}, rows=145, val_rows=10)
    ingests = ranks_of(plan, kind(145), kind(10))
    whole = [content(ingest.steps(2)) for ingest in ingests]
    assert {len(steps) for steps in whole} == {plan.steps_per_epoch}
    for step in (1, 5):
        with drawing_nothing():
            rests = [content(ingest.steps(2, step * 24)) for ingest in ingests]
        assert rests == [steps[step:] for steps in whole]
