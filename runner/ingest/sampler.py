"""Which rows a rank sees: pure index arithmetic, the same for every ingest and any number of ranks.

Global batch k of an epoch is rows [kB, (k+1)B) of the epoch's permutation, split over the ranks in order. No row is
repeated or dropped; torch's DistributedSampler and Horovod's pad instead.
"""

from __future__ import annotations

import torch
from torch import Tensor


def epoch_order(rows: int, seed: int, epoch: int) -> Tensor:
    """The permutation of an epoch: int64 [rows], from seed + epoch alone."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(rows, generator=generator)


def part(rows: int, parts: int, index: int) -> slice:
    """Part `index` of `rows` cut into `parts` in order; sizes differ by one at most, and may be 0."""
    return slice(index * rows // parts, (index + 1) * rows // parts)
