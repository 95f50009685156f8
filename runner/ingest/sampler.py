"""Which rows a rank sees: pure index arithmetic, the same for every ingest and any number of ranks.

Global batch k of an epoch is rows [kB, (k+1)B) of the epoch's order, split over the ranks in order. No row is
repeated or dropped; torch's DistributedSampler and Horovod's pad instead. An epoch can be entered after any number of
rows: the batches of the rest are cut from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from runner.plan import Plan


def epoch_order(rows: int, seed: int, epoch: int) -> Tensor:
    """The permutation of an epoch: int64 [rows], from seed + epoch alone."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(rows, generator=generator)


def part(rows: int, parts: int, index: int) -> slice:
    """Part `index` of `rows` cut into `parts` in order; sizes differ by one at most, and may be 0."""
    return slice(index * rows // parts, (index + 1) * rows // parts)


@dataclass(frozen=True)
class Share:
    """A rank's rows of one global batch."""

    rows: Tensor  # int64; row numbers, at least one
    counted: int  # of them: 0 where the rank has none of its own, and takes the batch's first row as a filler
    global_rows: int


def shares(plan: Plan, order: Tensor, rank: int, done: int = 0) -> Iterator[Share]:
    """A rank's share of each step of an epoch; as many on every rank.

    Of `order`, the epoch's row numbers, the first `done` are used already (over all ranks).
    """
    size, end = plan.global_batch_size, plan.rows_at_end(done)
    for step in range(plan.steps_left(done)):
        start = done + step * size
        rows = order[start : min(start + size, end)]
        mine = rows[part(len(rows), plan.num_workers, rank)]
        yield Share(mine if len(mine) else rows[:1], len(mine), len(rows))
