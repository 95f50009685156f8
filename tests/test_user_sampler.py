"""A dataset's own sampler: which rows, in which order, the same on every rank; and the words where it goes wrong."""

import itertools
import random
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import WeightedRandomSampler

from runner.errors import ConfigError, TrainingError
from runner.ingest import arrays
from runner.ingest.dataloader import LoaderIngest
from runner.ingest.rows import Arrays
from runner.ingest.tensors import TensorIngest
from runner.plan import DataFacts
from runner.schema import Dataset, Ingest, Task
from tests.fakes import plan_for
from tests.test_mid_epoch import CPU, content, drawing_nothing, items

ROWS = 6
SEED = 7


def numbered(rows=ROWS):
    return Arrays(*items(rows).read(0, rows))


def ranks_of(plan, sampler, rows=ROWS, seed=SEED):
    split = {"train": numbered(rows), "val": numbered(rows)}
    return [TensorIngest(split, plan, seed, rank, CPU, sampler) for rank in range(plan.num_workers)]


def taken(ingests, epoch=0, done=0):
    """Row numbers that count, batch by batch, rank after rank."""
    ranks = [list(ingest.steps(epoch, done)) for ingest in ingests]
    return [
        [int(row) for step in steps for b in step if b.counted for row in b.targets[:, 0].tolist()]
        for steps in zip(*ranks, strict=True)
    ]


def rotated(epoch):
    """Rows more than once, and row 1 never; in another order each epoch."""
    return np.roll([0, 0, 2, 3, 3, 3, 4, 5], epoch)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_global_batches_are_cut_from_the_sampler_s_rows(workers):
    ingests = ranks_of(plan_for(workers, 12 // workers, rows=8), rotated)
    assert taken(ingests, 0) == [[0, 0, 2, 3, 3, 3, 4, 5]]
    ingests = ranks_of(plan_for(1, 3, rows=8), rotated)
    assert taken(ingests, 1) == [[5, 0, 0], [2, 3, 3], [3, 4]]
    assert taken(ingests, 1, done=4) == [[3, 3, 3], [4]]


@pytest.mark.parametrize(
    "kind", [list, tuple, torch.tensor, np.array, iter, lambda rows: np.array(rows, np.uint8)]
)
def test_any_sequence_of_whole_numbers_will_do(kind):
    assert taken(ranks_of(plan_for(2, 2, rows=4), lambda epoch: kind([5, 1, 1, 0]))) == [[5, 1, 1, 0]]


def test_a_loader_takes_repeated_rows_from_any_kind_of_split():
    class Table:
        def __len__(self):
            return ROWS

        def read(self, start, stop):
            return items(ROWS).read(start, stop)

    plan, found = plan_for(2, 2, rows=8), Table()
    source = arrays.Source(found, ROWS, items(ROWS).check)
    expected = [
        [b.targets.tolist() for step in ingest.steps(1) for b in step] for ingest in ranks_of(plan, rotated)
    ]
    for split in (numbered(), items(ROWS), source):
        ranks = [
            LoaderIngest({"train": split, "val": split}, plan, SEED, rank, CPU, 0, rotated) for rank in (0, 1)
        ]
        assert [[b.targets.tolist() for step in i.steps(1) for b in step] for i in ranks] == expected
        assert [content(i.steps(1, 4)) for i in ranks] == [content(i.steps(1))[1:] for i in ranks]


def weighted(epoch):
    """A sampler of torch, which draws from the global generator."""
    return WeightedRandomSampler([1.0, 0.0, 9.0, 1.0, 1.0, 1.0], 300)


def test_what_a_sampler_draws_depends_on_seed_and_epoch_and_not_on_the_rank():
    plan = plan_for(2, 25, rows=300)
    with drawing_nothing():
        first = taken(ranks_of(plan, weighted))
    torch.manual_seed(99)
    assert taken(ranks_of(plan, weighted)) == first
    signatures = {ingest.order(0) for ingest in ranks_of(plan, weighted)}
    assert len(signatures) == 1
    assert taken(ranks_of(plan, weighted), 1) != first
    assert taken(ranks_of(plan, weighted, seed=8)) != first
    rows = list(itertools.chain(*first))
    assert len(rows) == 300
    assert rows.count(1) == 0
    assert 150 < rows.count(2) < 250  # 9 of 13


def test_a_sampler_is_asked_once_an_epoch():
    asked = []

    def sampler(epoch):
        asked.append(epoch)
        return range(ROWS)

    (ingest,) = ranks_of(plan_for(1, 2, rows=ROWS), sampler)
    for epoch in (0, 1, 2):
        ingest.order(epoch)
        list(ingest.steps(epoch, 2))
    assert asked == [0, 1, 2]


def test_the_array_that_a_sampler_reuses_is_copied():
    reused = np.arange(ROWS)

    def sampler(epoch):
        reused[:] = (np.arange(ROWS) + epoch) % ROWS
        return reused

    (ingest,) = ranks_of(plan_for(1, ROWS, rows=ROWS), sampler)
    steps = ingest.steps(1)
    reused[:] = 0
    assert [b.targets[:, 0].tolist() for b in next(steps)] == [[1, 2, 3, 4, 5, 0]]


def test_ranks_whose_samplers_differ_have_other_signatures():
    plan = plan_for(1, 2, rows=4)
    found = [
        ranks_of(plan, lambda epoch, rows=rows: rows)[0].order(3)
        for rows in ([0, 1, 2, 3], [0, 1, 3, 2], [0, 1, 2])
    ]
    assert [rows for rows, _ in found] == [4, 4, 3]
    assert len({crc for _, crc in found}) == 3
    assert ranks_of(plan, None)[0].order(3) == (4, 0)


def broken(epoch):
    raise KeyError("no weights")


BROKEN = f"{broken.__code__.co_filename}:{broken.__code__.co_firstlineno + 1}"
NEEDED = "a sequence of row numbers is needed"
WRONG = [
    (broken, f"sampler(0): KeyError: 'no weights' ({BROKEN})"),
    (lambda epoch: None, f"sampler(0) gave a NoneType: {NEEDED}"),
    (lambda epoch: 3, f"sampler(0) gave a int: {NEEDED}"),
    (lambda epoch: [0.0, 1.0], f"sampler(0) gave float64 of shape (2,): {NEEDED}"),
    (lambda epoch: [[0, 1]], f"sampler(0) gave int64 of shape (1, 2): {NEEDED}"),
    (lambda epoch: [True, False], f"sampler(0) gave bool of shape (2,): {NEEDED}"),
    (lambda epoch: "012", f"sampler(0) gave <U3 of shape (): {NEEDED}"),
    (lambda epoch: [], "sampler(0) gave no rows"),
    (lambda epoch: [5, 6], "sampler(0) gave row 6 (number 1 of 2), but split train has 6 rows (0 to 5)"),
    (lambda epoch: [-1, 6], "sampler(0) gave row -1 (number 0 of 2), but split train has 6 rows (0 to 5)"),
]


@pytest.mark.parametrize(("sampler", "line"), WRONG, ids=[line for _, line in WRONG])
def test_what_a_sampler_must_not_give_is_one_line_on_the_driver_and_on_a_rank(sampler, line):
    with pytest.raises(ConfigError) as refused:
        load(sampler)
    assert str(refused.value) == f"dataset: {line}"
    with pytest.raises(TrainingError) as failed:
        ranks_of(plan_for(1, 2, rows=2), sampler)[0].order(0)
    assert str(failed.value) == f"dataset: {line}"


def test_an_epoch_of_another_length_is_refused_before_its_first_batch():
    (ingest,) = ranks_of(plan_for(1, 2, rows=5), lambda epoch: range(5 - epoch))
    assert [len(rows) for rows in taken([ingest])] == [2, 2, 1]
    assert ingest.order(2)[0] == 3
    with pytest.raises(TrainingError) as failed:
        next(ingest.steps(2))
    assert str(failed.value) == "dataset: sampler(2) gave 3 rows, sampler(0) 5: every epoch needs as many"


FOUND = {}


def read():
    return FOUND


def load(sampler, **settings):
    split = np.arange(ROWS, dtype=np.float32)[:, None], np.array([0, 1, 1, 2, 2, 2])
    FOUND.clear()
    FOUND.update(train=split, val=tuple(column[:2] for column in split), sampler=sampler)
    target = {"_target_": f"{__name__}.read"}
    return arrays.load(Dataset(Task.classification, target=target, **settings), settings.pop("seed", 0))


def test_the_plan_counts_the_sampler_s_rows_and_the_facts_of_classes_are_the_split_s():
    data = load(rotated)
    assert data.facts == DataFacts(8, 2, (1,), 3, (1, 2, 3))
    assert len(data.splits["train"]) == ROWS
    assert data.sampler is rotated
    assert load(None).facts.train_rows == ROWS
    assert load(None).sampler is None


def test_a_sampler_s_rows_are_of_the_split_that_limit_rows_leaves():
    with pytest.raises(ConfigError, match=r"sampler\(0\) gave row 3 .* split train has 3 rows \(0 to 2\)"):
        load(rotated, limit_rows=3)


@pytest.mark.parametrize(
    ("sampler", "settings", "line"),
    [
        (
            [0, 1],
            {},
            "dataset: {name} returned a list as sampler: a function sampler(epoch) that gives row numbers is needed",
        ),
        (
            rotated,
            {"ingest": Ingest.ray_data},
            "dataset.ingest=ray_data: the sampler of {name} needs rows by number; type dataset.ingest=dataloader",
        ),
    ],
)
def test_a_sampler_that_cannot_be_used_is_refused(sampler, settings, line):
    with pytest.raises(ConfigError) as refused:
        load(sampler, **settings)
    assert str(refused.value) == line.format(name=f"{__name__}.read")


def test_a_sampler_that_cannot_be_sent_to_the_workers_is_refused():
    lock = threading.Lock()
    with pytest.raises(ConfigError) as refused:
        load(lambda epoch: [int(lock.locked())])
    assert str(refused.value).startswith(
        f"dataset: the sampler of {__name__}.read cannot be sent to the workers: TypeError: cannot pickle"
    )


def test_random_numbers_that_a_sampler_draws_on_the_driver_leave_no_trace():
    with drawing_nothing():
        load(lambda epoch: random.choices(range(ROWS), k=4))
