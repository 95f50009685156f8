"""torch's DataLoader: exactly the batches of `tensors`, from this process or others, which end when they should."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
from torch.utils.data import Dataset

from runner.errors import TrainingError
from runner.ingest import batches as shared_batches
from runner.ingest.batches import Place
from runner.ingest.checks import Check
from runner.ingest.dataloader import LoaderIngest
from runner.ingest.rows import Arrays, Items
from runner.ingest.tensors import TensorIngest
from runner.schema import Task
from tests.fakes import plan_for

CPU = Place(torch.device("cpu"))
REGRESSION = Check(Task.regression, "train")


class Numbered(Dataset):
    """Row i is [i, a random number], its target i. Row `bad` raises; row `deadly` kills its process."""

    def __init__(self, rows, bad=None, deadly=None):
        self.rows, self.bad, self.deadly = rows, bad, deadly

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        if row == self.bad:
            raise KeyError("the sky fell")
        if row == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return [row, random.random()], row


def items(rows, **settings):
    return Items(Numbered(rows, **settings), rows, REGRESSION)


def arrays(rows):
    return Arrays(*items(rows).read(0, rows))


def loaders(plan, train, val, workers=0, seed=7):
    splits = {"train": train, "val": val}
    return [LoaderIngest(splits, plan, seed, rank, CPU, workers) for rank in range(plan.num_workers)]


def content(steps):
    return [
        [(b.inputs.tolist(), b.targets.tolist(), b.counted, b.global_rows) for b in step] for step in steps
    ]


def numbers(steps):
    return [
        [([row[0] for row in rows], *rest) for rows, *rest in step]
        for step in content(steps)
    ]  # fmt: skip


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [2, 24, 31])
def test_the_batches_are_exactly_those_of_tensors(rows, workers, accumulation):
    plan = plan_for(workers, 3, accumulation, rows=rows, val_rows=5)
    train, val = arrays(rows), arrays(5)
    from_arrays, from_items = loaders(plan, train, val), loaders(plan, items(rows), items(5))
    for rank in range(workers):
        tensors = TensorIngest({"train": train, "val": val}, plan, 7, rank, CPU)
        for epoch in (0, 2):
            assert content(from_arrays[rank].steps(epoch)) == content(tensors.steps(epoch))
            assert numbers(from_items[rank].steps(epoch)) == numbers(tensors.steps(epoch))
        for ours, theirs in zip(from_arrays[rank].evaluation(), tensors.evaluation(), strict=True):
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("limit", [1, 2, 1024])
def test_evaluation_reads_every_row_once_and_large_rows_in_smaller_batches(monkeypatch, limit):
    monkeypatch.setattr(shared_batches, "MAX_EVAL_BYTES", 12 * limit)  # a row has 12 bytes
    ranks = loaders(plan_for(3, 2, rows=8, val_rows=10), items(8), items(10))
    found = [inputs[:, 0].tolist() for ingest in ranks for inputs, _ in ingest.evaluation()]
    assert sorted(row for rows in found for row in rows) == list(range(10))
    assert max(len(rows) for rows in found) <= limit


def test_what_rows_draw_depends_on_seed_and_epoch_not_on_ranks():
    def drawn(workers, epoch, seed=7):
        ranks = loaders(plan_for(workers, 12 // workers, rows=31, val_rows=5), items(31), items(5), seed=seed)
        train = {
            row[0]: row[1]
            for ingest in ranks
            for step in ingest.steps(epoch)
            for batch in step
            for row in batch.inputs.tolist()
        }
        val = [inputs.tolist() for ingest in ranks for inputs, _ in ingest.evaluation()]
        return train, [row for rows in val for row in rows]

    one, three = drawn(1, 1), drawn(3, 1)
    assert one == three
    assert len(one[0]) == 31
    other_epoch, other_seed = drawn(1, 2), drawn(1, 1, seed=8)
    assert all(one[0][row] != other_epoch[0][row] for row in range(31))
    assert one[1] == other_epoch[1]  # evaluation draws the same each time
    assert one[1] != other_seed[1]


def test_the_training_s_random_numbers_go_on_as_if_nothing_was_read():
    (ingest,) = loaders(plan_for(1, 4, rows=9, val_rows=5), items(9), items(5))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    list(ingest.steps(0)), list(ingest.evaluation())
    assert torch.equal(torch.rand(4), expected)


def test_a_row_that_fails_is_named_with_the_user_s_line():
    (ingest,) = loaders(plan_for(1, 4, rows=9), items(9, bad=5), items(5))
    line = Numbered.__getitem__.__code__.co_firstlineno + 2
    with pytest.raises(TrainingError) as failed:
        list(ingest.steps(0))
    assert str(failed.value) == f"dataset: row 5 of split train: KeyError: 'the sky fell' ({__file__}:{line})"


def loader_processes():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if child.is_running() and child.name() == "pt_data_worker"]


def test_processes_of_the_loader_give_the_same_stay_and_end():
    """One test of all that needs processes, which take a second or two to start."""
    plan = plan_for(2, 4, rows=31, val_rows=5)
    here = loaders(plan, items(31), items(5))[1]
    there = loaders(plan, items(31), items(5), workers=2)[1]
    assert content(there.steps(0)) == content(here.steps(0))
    assert [rows.tolist() for columns in there.evaluation() for rows in columns] == [
        rows.tolist() for columns in here.evaluation() for rows in columns
    ]
    deadline = time.monotonic() + 20  # one that has nothing to read may still be starting
    while len(loader_processes()) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    before = {process.pid for process in loader_processes()}
    assert len(before) == 4  # two for training, two for validation
    unfinished = there.steps(1)
    next(unfinished)
    unfinished.close()
    assert content(there.steps(2)) == content(
        here.steps(2)
    )  # nothing is left of the epoch that was not finished
    assert {process.pid for process in loader_processes()} == before
    there.close()
    there.close()
    assert loader_processes() == []

    for settings, message in (
        ({"bad": 5}, "dataset: row 5 of split train: KeyError: 'the sky fell'"),
        ({"deadly": 5}, r"dataset.loader_workers=2: DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"),
    ):
        (failing,) = loaders(plan_for(1, 8, rows=31), items(31, **settings), items(5), workers=2)
        with pytest.raises(TrainingError, match=message):
            list(failing.steps(0))
        failing.close()
    assert loader_processes() == []


def test_arrays_are_read_in_the_rank_itself():
    (ingest,) = loaders(plan_for(1, 4, rows=9, val_rows=5), arrays(9), arrays(5), workers=3)
    list(ingest.steps(0)), list(ingest.evaluation())
    assert loader_processes() == []


def test_a_killed_rank_takes_its_loader_s_processes_with_it(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent("""
        import time, psutil
        from tests.test_dataloader import items, loaders, plan_for
        if __name__ == "__main__":
            (ingest,) = loaders(plan_for(1, 4, rows=31, val_rows=5), items(31), items(5), workers=2)
            next(ingest.steps(0))
            print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
            time.sleep(60)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment) as rank:
        pids = [int(pid) for pid in rank.stdout.readline().split()]
        rank.kill()
    assert len(pids) == 4  # a server of processes, a tracker of shared memory, two readers
    until = time.time() + 30
    while any(map(psutil.pid_exists, pids)) and time.time() < until:
        time.sleep(0.05)
    left = [psutil.Process(pid).status() for pid in pids if psutil.pid_exists(pid)]
    assert [status for status in left if status != psutil.STATUS_ZOMBIE] == []
