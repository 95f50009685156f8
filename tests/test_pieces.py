"""Which rows a rank streams: every row on one rank, in pieces of a fitting size."""

import pytest

from runner.ingest.pieces import deal, piece_rows, reordered, shard_sizes
from tests.fakes import plan_for


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


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(
    ("sizes", "size"), [([334, 334, 335], 50), ([0, 1], 8), ([7, 0, 5], 1), ([4, 4], 100)]
)
def test_every_row_is_dealt_to_one_rank(sizes, size, seed):
    ranks = deal(sizes, size, seed)
    assert [sum(stop - start for start, stop in mine) for mine in ranks] == sizes
    rows = [row for mine in ranks for start, stop in mine for row in range(start, stop)]
    assert sorted(rows) == list(range(sum(sizes)))
    assert max((stop - start for mine in ranks for start, stop in mine), default=0) <= size
    assert (rows == sorted(rows)) == (seed is None or len(rows) <= size)
    assert ranks == deal(sizes, size, seed)


def test_a_sorted_file_is_dealt_to_the_ranks_in_a_mixed_order():
    first, second = deal([5, 5], 2, seed=0)
    assert first == [(4, 6), (8, 10), (6, 7)]
    assert second == [(7, 8), (0, 2), (2, 4)]


@pytest.mark.parametrize(
    ("rows", "ranks", "bytes_a_row", "size"),
    [
        (100, 2, 4, 512),  # worth a task
        (64_000, 2, 4, 2000),  # 16 a rank
        (10**9, 2, 4, 65_536),
        (10**9, 2, 4096, 16_384),  # 64 MB
        (10**9, 2, 2**30, 1),
    ],
)
def test_pieces_are_small_enough_to_mix_and_large_enough_for_a_task(rows, ranks, bytes_a_row, size):
    assert piece_rows(rows, ranks, bytes_a_row) == size


def test_an_epoch_has_its_own_order_of_the_same_pieces():
    pieces = [(row, row + 1) for row in range(20)]
    assert sorted(reordered(pieces, 3)) == pieces
    assert reordered(pieces, 3) == reordered(pieces, 3) != reordered(pieces, 4)
