"""Which rows a rank streams: as many as its shares of all global batches, in pieces. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner.ingest.sampler import part
from runner.plan import Plan

PIECE_BYTES = (
    64 * 2**20
)  # below Ray's block size: a task that yields two blocks waits with its CPU for the first
PIECE_ROWS = 65_536
PIECES_A_RANK = 16  # at least, where there are rows enough for pieces worth a task
MIN_PIECE_ROWS = 512

Piece = tuple[int, int]  # rows [start, stop)


def shard_sizes(plan: Plan) -> list[int]:
    """Rows of each rank: its shares of the full global batches and of the short last one; together all rows."""
    full, rest = divmod(plan.train_rows, plan.global_batch_size)
    shares = [part(rest, plan.num_workers, rank) for rank in range(plan.num_workers)]
    return [full * plan.global_batch_size // plan.num_workers + share.stop - share.start for share in shares]


def piece_rows(rows: int, ranks: int, bytes_a_row: int) -> int:
    """Rows of a piece: small enough to mix the data and for memory, large enough for a task."""
    wanted = max(MIN_PIECE_ROWS, rows // (ranks * PIECES_A_RANK))
    return max(1, min(wanted, PIECE_ROWS, PIECE_BYTES // bytes_a_row))


def deal(sizes: Sequence[int], size: int, seed: int | None) -> list[list[Piece]]:
    """Every rank's pieces: the rows cut into pieces of `size`, shuffled by `seed` (null: in order), the last piece of
    a rank cut where it is full."""
    starts = range(0, sum(sizes), size)
    order = range(len(starts)) if seed is None else np.random.default_rng(seed).permutation(len(starts))
    ranks: list[list[Piece]] = [[] for _ in sizes]
    rank, room = -1, 0
    for index in order:
        start, stop = starts[index], min(starts[index] + size, starts.stop)
        while start < stop:
            while not room:
                rank += 1
                room = sizes[rank]
            cut = min(stop, start + room)
            ranks[rank].append((start, cut))
            room -= cut - start
            start = cut
    return ranks


def reordered(pieces: Sequence[Piece], seed: int) -> list[Piece]:
    """The pieces in a seeded order."""
    return [pieces[index] for index in np.random.default_rng(seed).permutation(len(pieces))]
