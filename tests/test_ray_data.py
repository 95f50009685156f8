"""Ray Data ingest, with a stand-in for the shard: what each rank is owed, and what it does with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runner.errors import TrainingError
from runner.ingest.ray_data import RayDataIngest, shard_sizes
from tests.fakes import plan_for

CPU = torch.device("cpu")


class Shard:
    """Batches of the given rows, in order, as Ray's DataIterator gives them."""

    def __init__(self, rows):
        self.rows = rows
        self.seeds = []

    def iter_torch_batches(self, batch_size, local_shuffle_buffer_size, local_shuffle_seed, device):
        assert local_shuffle_buffer_size >= batch_size
        self.seeds.append(local_shuffle_seed)
        chunks = [self.rows[at : at + batch_size] for at in range(0, len(self.rows), batch_size)]
        return [
            {"inputs": torch.tensor(rows)[:, None].float(), "targets": torch.tensor(rows)} for rows in chunks
        ]


@pytest.mark.parametrize(
    ("rows", "workers", "batch", "accumulation", "sizes"),
    [
        (1003, 3, 32, 1, [334, 334, 335]),  # 10 batches of 96, then 43 = 14 + 14 + 15
        (12, 3, 4, 1, [4, 4, 4]),
        (1, 2, 8, 1, [0, 1]),
        (100, 4, 3, 2, [25, 25, 25, 25]),
    ],
)
def test_the_shards_are_the_shares_of_all_batches(rows, workers, batch, accumulation, sizes):
    plan = plan_for(workers, batch, accumulation, rows=rows)
    assert shard_sizes(plan) == sizes
    assert sum(sizes) == rows


@pytest.mark.parametrize(
    ("rows", "workers", "accumulation"), [(1003, 3, 1), (50, 4, 2), (1, 2, 1), (9, 2, 3)]
)
def test_every_row_is_used_once_in_equal_steps(rows, workers, accumulation):
    plan = plan_for(workers, 4, accumulation, rows=rows)
    val = (np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    start, seen, weights = 0, [], torch.zeros(plan.steps_per_epoch)
    for rank, size in enumerate(shard_sizes(plan)):
        shard = Shard(list(range(start, start + size)))
        start += size
        steps = list(RayDataIngest(shard, val, plan, seed=7, rank=rank, device=CPU).steps(epoch=2))
        assert shard.seeds == [9]
        assert [len(step) for step in steps] == [accumulation] * plan.steps_per_epoch
        for number, step in enumerate(steps):
            for batch in step:
                if batch.scale:
                    seen += batch.targets.tolist()
                    weights[number] += batch.scale * len(batch.targets)
    assert sorted(seen) == list(range(rows))
    torch.testing.assert_close(weights, torch.full_like(weights, workers))  # averaged: every batch weighs 1


def test_a_missing_row_is_an_error_that_names_the_rank():
    plan = plan_for(2, 4, rows=20)
    val = (np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
    ingest = RayDataIngest(Shard(list(range(9))), val, plan, seed=0, rank=1, device=CPU)
    with pytest.raises(TrainingError, match="Ray Data gave rank 1 1 rows of 2 at step 2"):
        list(ingest.steps(0))
