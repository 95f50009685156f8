"""In-memory ingest at many sizes: each row once, equal steps, and what is counted."""

import itertools

import numpy as np
import pytest
import torch

from runner.ingest import batches as shared_batches
from runner.ingest.batches import Place
from runner.ingest.rows import Arrays
from runner.ingest.sampler import epoch_order
from runner.ingest.tensors import TensorIngest
from tests.fakes import plan_for, plan_of

CPU = Place(torch.device("cpu"))
SIZES = list(
    itertools.product([1, 2, 5, 8, 13, 24, 31], [1, 2, 3, 4], [1, 3], [1, 2, 3])
)  # rows, workers, batch, accumulation


def numbered(rows, val_rows=5):
    """Splits whose one input column and target are the row's number."""
    train, val = (np.arange(count, dtype=np.float32)[:, None] for count in (rows, val_rows))
    return {"train": Arrays(train, train.copy()), "val": Arrays(val, val.copy())}


def ingests(splits, plan, seed=0):
    return [TensorIngest(splits, plan, seed, rank, CPU) for rank in range(plan.num_workers)]


def epoch_of(ingest, epoch=0):
    return list(ingest.steps(epoch))


def real_rows(steps):
    """Row numbers of micro-batches that count, in order."""
    return [row for step in steps for batch in step if batch.counted for row in batch.inputs[:, 0].tolist()]


@pytest.mark.parametrize(("rows", "workers", "batch", "accumulation"), SIZES)
def test_one_epoch(rows, workers, batch, accumulation):
    plan = plan_for(workers, batch, accumulation, rows=rows, val_rows=5)
    ranks = [epoch_of(ingest, epoch=2) for ingest in ingests(numbered(rows), plan, seed=7)]

    # Every rank takes the same number of steps, each of accumulation_steps micro-batches with at least a row.
    assert {len(steps) for steps in ranks} == {-(-rows // (workers * batch * accumulation))}
    assert {len(step) for steps in ranks for step in steps} == {accumulation}
    assert min(len(b.inputs) for steps in ranks for step in steps for b in step) >= 1

    # Read step by step and rank by rank, the rows are the epoch's permutation, whatever the number of ranks.
    order = epoch_order(rows, 7, 2).tolist()
    read = [row for steps in zip(*ranks, strict=True) for mine in steps for row in real_rows([mine])]
    assert read == order

    # No micro-batch has more rows than fit, and inputs and targets stay together.
    batches = [b for steps in ranks for step in steps for b in step]
    assert max(len(b.inputs) for b in batches) <= batch
    assert all(torch.equal(b.inputs, b.targets) for b in batches)

    # All know how many rows the global batch has, and those that count are as many.
    for number, steps in enumerate(zip(*ranks, strict=True)):
        size = min(plan.global_batch_size, rows - number * plan.global_batch_size)
        assert {b.global_rows for step in steps for b in step} == {size}
        assert sum(len(b.inputs) for step in steps for b in step if b.counted) == size


def test_a_rank_without_rows_gets_one_that_is_not_counted():
    plan = plan_for(4, 2, rows=2)
    ranks = [epoch_of(ingest) for ingest in ingests(numbered(2), plan)]
    first, second = epoch_order(2, 0, 0).tolist()
    found = [(b.counted, b.inputs[:, 0].tolist()) for ((b,),) in ranks]
    assert found == [(False, [first]), (True, [first]), (False, [first]), (True, [second])]


def test_a_micro_batch_without_rows_repeats_the_rank_s_first_one():
    plan = plan_for(1, 2, 3, rows=2)
    ((step,),) = [epoch_of(ingest) for ingest in ingests(numbered(2), plan)]
    first, second = epoch_order(2, 0, 0).tolist()
    found = [(b.counted, b.inputs[:, 0].tolist()) for b in step]
    assert found == [(False, [first]), (True, [first]), (True, [second])]


def test_the_short_last_batch_is_split_over_all_ranks():
    plan = plan_for(3, 4, rows=17)  # 12 + 5
    last = [epoch_of(ingest)[-1][0] for ingest in ingests(numbered(17), plan)]
    assert [len(batch.inputs) for batch in last] == [1, 2, 2]
    assert {batch.global_rows for batch in last} == {5}


def test_drop_last_leaves_the_short_batch_out():
    plan = plan_of(
        {"scaling.num_workers": 3, "trainer.batch_size": 4, "dataset.drop_last": True}, rows=17, val_rows=5
    )
    ranks = [epoch_of(ingest) for ingest in ingests(numbered(17), plan)]
    assert [len(steps) for steps in ranks] == [1, 1, 1]
    assert [row for steps in ranks for row in real_rows(steps)] == epoch_order(17, 0, 0)[:12].tolist()


def test_an_epoch_repeats_with_its_seed_and_differs_from_the_next():
    plan = plan_for(2, 4, rows=31)
    first, again = ingests(numbered(31), plan)[0], ingests(numbered(31), plan)[0]
    assert real_rows(epoch_of(first, 1)) == real_rows(epoch_of(again, 1))
    assert real_rows(epoch_of(first, 0)) != real_rows(epoch_of(first, 1))
    other = TensorIngest(numbered(31), plan, 99, 0, CPU)
    assert real_rows(epoch_of(other, 0)) != real_rows(epoch_of(first, 0))


@pytest.mark.parametrize("chunk", [1, 2, 1024])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("val_rows", [1, 3, 5, 10])
def test_evaluation_reads_every_row_once_in_chunks(monkeypatch, chunk, workers, val_rows):
    monkeypatch.setattr(shared_batches, "MAX_EVAL_BATCH", chunk)
    plan = plan_for(workers, 2, rows=8, val_rows=val_rows)
    batches = [
        batch for ingest in ingests(numbered(8, val_rows), plan) for batch in ingest.evaluation()
    ]  # rank after rank
    assert [row for inputs, _ in batches for row in inputs[:, 0].tolist()] == list(range(val_rows))
    assert [row for _, targets in batches for row in targets[:, 0].tolist()] == list(range(val_rows))
    assert max(len(inputs) for inputs, _ in batches) <= chunk


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_are_accepted_and_batches_are_copies():
    splits = numbered(8)
    for rows in splits.values():
        for column in (rows.inputs, rows.targets):
            column.flags.writeable = False
    (ingest,) = ingests(splits, plan_for(1, 4, rows=8))
    for step in epoch_of(ingest):
        step[0].inputs.zero_()
    assert splits["train"].inputs[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_the_arrays_dtype_is_kept(dtype):
    splits = {
        name: Arrays(rows.inputs.astype(dtype), rows.targets.astype(dtype))
        for name, rows in numbered(4).items()
    }
    (ingest,) = ingests(splits, plan_for(1, 4, rows=4))
    assert epoch_of(ingest)[0][0].inputs.dtype == torch.from_numpy(np.zeros(1, dtype)).dtype


def test_a_place_changes_the_type_of_fractions_alone():
    rows = Arrays(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    place = Place(torch.device("cpu"), torch.float64)
    ingest = TensorIngest({"train": rows, "val": rows}, plan_for(1, 4, rows=4, val_rows=4), 0, 0, place)
    (((batch,),), ((inputs, targets),)) = epoch_of(ingest), list(ingest.evaluation())
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.float64, torch.int64)
    assert (inputs.dtype, targets.dtype) == (torch.float64, torch.int64)
