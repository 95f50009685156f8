"""Index arithmetic: every row once, in an order that knows nothing of ranks."""

import pytest
import torch

from runner.ingest.sampler import epoch_order, part, shares
from tests.fakes import plan_for, plan_of


@pytest.mark.parametrize("rows", [0, 1, 2, 17, 1000])
def test_an_epoch_s_order_is_a_permutation(rows):
    assert sorted(epoch_order(rows, 0, 0).tolist()) == list(range(rows))


def test_the_order_depends_on_seed_plus_epoch_alone():
    torch.manual_seed(1)
    first = epoch_order(100, 3, 4)
    torch.manual_seed(2)
    assert torch.equal(first, epoch_order(100, 3, 4))
    assert torch.equal(first, epoch_order(100, 0, 7))
    assert torch.equal(first, torch.randperm(100, generator=torch.Generator().manual_seed(7)))


def test_epochs_and_seeds_have_different_orders():
    orders = {tuple(epoch_order(100, seed, epoch).tolist()) for seed in (0, 100) for epoch in range(20)}
    assert len(orders) == 40


def test_drawing_an_order_leaves_torch_s_own_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    epoch_order(100, 0, 0)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 8, 31])
def test_parts_follow_one_another_cover_all_rows_and_differ_by_one_at_most(rows, parts):
    slices = [part(rows, parts, index) for index in range(parts)]
    assert [row for found in slices for row in range(rows)[found]] == list(range(rows))
    sizes = [found.stop - found.start for found in slices]
    assert max(sizes) - min(sizes) <= 1


def test_sizes_of_the_parts_of_ten_rows():
    sizes = [(found.start, found.stop) for found in (part(10, 4, index) for index in range(4))]
    assert sizes == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_shares_of_a_short_last_batch():
    plan = plan_for(3, 2, rows=8)  # 6 + 2
    found = epoch_order(8, 5, 1)
    order = found.tolist()
    ranks = [list(shares(plan, found, rank)) for rank in range(3)]
    assert (
        [[share.rows.tolist() for share in mine] for mine in ranks]
        == [
            [order[0:2], order[6:7]],  # a filler
            [order[2:4], order[6:7]],
            [order[4:6], order[7:8]],
        ]
    )
    assert [[(share.counted, share.global_rows) for share in mine] for mine in ranks] == [
        [(2, 6), (0, 2)],
        [(2, 6), (1, 2)],
        [(2, 6), (1, 2)],
    ]


@pytest.mark.parametrize(
    ("done", "batches"),
    [
        (0, [range(6), range(6, 12), range(12, 17)]),
        (6, [range(6, 12), range(12, 17)]),
        (7, [range(7, 13), range(13, 17)]),  # left there by another number of workers
        (16, [range(16, 17)]),
        (17, []),
    ],
)
def test_the_rest_of_an_epoch_is_cut_anew_from_any_row(done, batches):
    plan, order = plan_for(3, 2, rows=17), epoch_order(17, 5, 1)
    ranks = [list(shares(plan, order, rank, done)) for rank in range(3)]
    found = [
        [row for share in step for row in share.rows[: share.counted].tolist()]
        for step in zip(*ranks, strict=True)
    ]
    assert found == [order[list(rows)].tolist() for rows in batches]
    assert {tuple(share.global_rows for share in mine) for mine in ranks} == {
        tuple(len(rows) for rows in batches)
    }


@pytest.mark.parametrize("done", range(18))
@pytest.mark.parametrize(
    ("settings", "used"),
    [
        ({"dataset.drop_last": True}, lambda done: done + max(0, 12 - done) // 6 * 6),
        ({"trainer.limit_batches": 2}, lambda done: max(done, 12)),
    ],
)
def test_rows_that_an_epoch_leaves_out_are_left_out_of_its_rest(settings, used, done):
    sizes = {"scaling.num_workers": 3, "trainer.batch_size": 2}
    plan, order = plan_of({**sizes, **settings}, rows=17), epoch_order(17, 5, 1)
    ranks = [list(shares(plan, order, rank, done)) for rank in range(3)]
    rows = [
        row
        for step in zip(*ranks, strict=True)
        for share in step
        for row in share.rows[: share.counted].tolist()
    ]
    assert rows == order[done : used(done)].tolist()
