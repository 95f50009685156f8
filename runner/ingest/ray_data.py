"""Ray Data ingest: rows streamed from Ray's object store, each once an epoch.

Ray's own split drops rows to make shards equal, and deals them anew each time. Here rank r owns the same rows in
every epoch and run, just as many as its shares of all global batches. So it repeats itself exactly, but is not the
order of `tensors`, where rows change ranks.

Arrays: a rank's rows are contiguous. Datasets and sources: rows are cut into pieces of consecutive rows, which are
dealt to the ranks in an order shuffled once, and read by Ray's tasks in every epoch anew, in another order; nothing
is kept beyond a few pieces, so data may be larger than memory. Validation rows are then read in the same way, in
order. Batches are drawn from a buffer of `dataset.shuffle_rows` rows or more, by seed + epoch: data sorted by class
want a buffer of several pieces.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from runner.errors import TrainingError
from runner.ingest.batches import Columns, MicroBatch, Place, evaluation_rows, micro_batches
from runner.ingest.checks import Pair
from runner.ingest.pieces import PIECE_BYTES, Piece, deal, piece_rows, reordered, shard_sizes
from runner.ingest.rows import Arrays, Rows, Splits, row_bytes
from runner.ingest.sampler import part
from runner.ingest.tensors import as_tensors
from runner.plan import Plan

BUFFERED_BATCHES = 32  # rows to shuffle among, in batches of a rank
BUFFERED_BYTES = 256 * 2**20  # of large rows fewer
BLOCK_ROWS = 4096
KEPT_ROWS = 2  # of a split that is streamed, for a rank without rows and as a model's example
STREAM_BYTES = 4 * PIECE_BYTES  # that one stream may hold in the object store

# Which epoch this process streams: Ray asks a Datasource for its tasks when a stream starts, without an argument.
_epoch = 0


def streams(splits: Splits) -> list[str]:
    """Splits that are streamed: the training rows, and validation rows that are not in memory."""
    return ["train"] if isinstance(splits["val"], Arrays) else ["train", "val"]


def kept(splits: Splits) -> Splits:
    """What a rank holds besides its streams: validation arrays, else a few rows."""
    return {
        name: Arrays(*rows.read(0, KEPT_ROWS)) if name in streams(splits) else rows
        for name, rows in splits.items()
    }


def dealt(splits: Splits, plan: Plan, seed: int) -> tuple[list[Mapping[str, Any]], Splits]:
    """Each rank's streams, and what a rank holds besides them: where no fit() deals them."""
    return data_config(plan).configure(datasets(splits, plan, seed), plan.num_workers), kept(splits)


def datasets(splits: Splits, plan: Plan, seed: int) -> dict[str, Any]:
    """{"train-0": …}: a ray.data.Dataset for each stream and rank, with columns `inputs` and `targets`."""
    val = [part(plan.val_rows, plan.num_workers, rank) for rank in range(plan.num_workers)]
    sizes = {"train": shard_sizes(plan), "val": [share.stop - share.start for share in val]}
    return {
        f"{name}-{rank}": shard
        for name in streams(splits)
        for rank, shard in enumerate(_shards(splits[name], sizes[name], plan, seed, name == "train"))
    }


def data_config(plan: Plan) -> Any:
    """Ray Train's DataConfig that gives every rank its own rows and loses none."""
    from ray.data import ExecutionOptions, ExecutionResources
    from ray.train import DataConfig

    class EveryRow(DataConfig):
        def configure(
            self, datasets: dict[str, Any], world_size: int, *rest: Any, **more: Any
        ) -> list[dict[str, Any]]:
            shards: list[dict[str, Any]] = [{} for _ in range(plan.num_workers)]
            for key, shard in datasets.items():
                name, _, rank = key.rpartition("-")
                shard.context.execution_options = ExecutionOptions(
                    preserve_order=True,
                    resource_limits=ExecutionResources.for_limits(object_store_memory=STREAM_BYTES),
                )
                shards[int(rank)][name] = shard.iterator()
            return shards

    return EveryRow()


class RayDataIngest:
    """Batches of one rank from its shards (a ray.data.DataIterator a stream); other validation rows are in memory."""

    def __init__(
        self,
        shards: Mapping[str, Any],
        splits: Splits,
        plan: Plan,
        seed: int,
        rank: int,
        place: Place,
        shuffle_rows: int | None = None,
    ) -> None:
        self._shards, self._splits, self._plan = shards, splits, plan
        self._seed, self._rank, self._place, self._shuffle_rows = seed, rank, place, shuffle_rows
        for handler in logging.getLogger("ray.data").handlers:
            if isinstance(handler, logging.StreamHandler):  # else each epoch prints three lines
                handler.setLevel(logging.CRITICAL)

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        """Raises TrainingError unless `done` is a number of whole global batches: a stream has only its own."""
        global _epoch
        _epoch = epoch
        plan, size, end = self._plan, self._plan.global_batch_size, self._plan.rows_at_end(done)
        first, rest = divmod(done, size)
        if rest:
            raise TrainingError(
                f"dataset.ingest=ray_data: an epoch goes on after whole global batches of {size} rows, not after {done} rows"
            )
        mine = plan.batch_size * plan.accumulation_steps
        batches = self._batches(
            "train",
            batch_size=mine,
            local_shuffle_buffer_size=max(mine, self._shuffle_rows or self._buffered(mine)),
            local_shuffle_seed=self._seed + epoch,
        )
        filler = as_tensors(self._splits["train"].read(0, 1))
        for step in range(first):  # drawn and dropped, so that the shuffle stands where it stood
            self._next(batches, mine, f"step {step}")
        for step in range(first, first + plan.steps_left(done)):
            rows = min(size, end - step * size)
            share = part(rows, plan.num_workers, self._rank)
            wanted = share.stop - share.start
            batch = self._next(batches, wanted, f"step {step}") if wanted else filler
            yield micro_batches(batch, wanted, rows, plan, self._place)
        if plan.train_rows - end < size:
            # The few rows of drop_last: of a stream that is not read to its end Ray leaves a thread.
            for _ in batches:
                pass

    def order(self, epoch: int) -> tuple[int, int]:
        return self._plan.train_rows, 0

    def evaluation(self) -> Iterator[Columns]:
        rows = self._splits["val"]
        if "val" in self._shards:
            ranges = list(evaluation_rows(self._plan, self._rank, row_bytes(rows)))
            found = self._batches("val", batch_size=len(ranges[0])) if ranges else iter(())
            batches = (self._next(found, len(wanted), f"row {wanted.start}") for wanted in ranges)
        else:
            ranges = list(evaluation_rows(self._plan, self._rank))
            batches = (as_tensors(rows.read(wanted.start, wanted.stop)) for wanted in ranges)
        for inputs, targets in batches:
            yield self._place(inputs), self._place(targets)

    def close(self) -> None:
        pass

    def _buffered(self, mine: int) -> int:
        """Rows to shuffle among where the config does not say."""
        return min(BUFFERED_BATCHES * mine, BUFFERED_BYTES // row_bytes(self._splits["train"]))

    def _batches(self, split: str, **options: Any) -> Iterator[Columns]:
        try:
            for batch in self._shards[split].iter_torch_batches(device="cpu", **options):
                yield batch["inputs"], batch["targets"]
        except Exception as error:
            raise _cause(error) from error

    def _next(self, batches: Iterator[Columns], wanted: int, where: str) -> Columns:
        batch = next(batches, None)
        found = 0 if batch is None else len(batch[0])
        if batch is None or found != wanted:
            raise TrainingError(f"Ray Data gave rank {self._rank} {found} rows of {wanted} at {where}")
        return batch


def _shards(rows: Rows, sizes: list[int], plan: Plan, seed: int, shuffles: bool) -> list[Any]:
    """A Dataset a rank."""
    import ray

    ends = list(accumulate(sizes, initial=0))
    if isinstance(rows, Arrays):
        return [_in_memory(rows, start, stop) for start, stop in pairwise(ends)]
    bytes_a_row = row_bytes(rows)
    dealt = deal(sizes, piece_rows(ends[-1], plan.num_workers, bytes_a_row), seed if shuffles else None)
    found = Streamed(ray.put(rows), Path.cwd(), seed, shuffles, bytes_a_row)
    return [_lazy(found, pieces) if pieces else _in_memory(rows, 0, 0) for pieces in dealt]


def _in_memory(rows: Rows, start: int, stop: int) -> Any:
    """A Dataset of the rows [start, stop)."""
    import ray

    starts = range(start, stop, BLOCK_ROWS)
    blocks = [_block(rows.read(at, min(at + BLOCK_ROWS, stop))) for at in starts]
    if not blocks:
        inputs, targets = rows.read(0, 1)
        blocks = [_block((inputs[:0], targets[:0]))]
    return ray.data.from_blocks(blocks)


@dataclass(frozen=True)
class Streamed:
    """A split that tasks read."""

    rows: Any  # reference to the Rows in Ray's object store
    folder: Path  # the driver's current one, for relative paths
    seed: int
    shuffles: bool
    bytes_a_row: int

    def tasks(self, pieces: Sequence[Piece]) -> list[Any]:
        """A ReadTask a piece, for the epoch that this process streams."""
        from ray.data.block import BlockMetadata
        from ray.data.datasource import ReadTask

        seed = self.seed + _epoch if self.shuffles else self.seed
        tasks = []
        for piece in reordered(pieces, seed) if self.shuffles else pieces:
            rows = piece[1] - piece[0]
            about = BlockMetadata(
                num_rows=rows, size_bytes=rows * self.bytes_a_row, input_files=None, exec_stats=None
            )
            tasks.append(ReadTask(partial(_read, self.rows, self.folder, piece, seed), about))
        return tasks


def _lazy(streamed: Streamed, pieces: Sequence[Piece]) -> Any:
    """A Dataset that reads the pieces whenever it is iterated."""
    import ray
    from ray.data import Datasource

    class Pieces(Datasource):
        def estimate_inmemory_data_size(self) -> int:
            return sum(stop - start for start, stop in pieces) * streamed.bytes_a_row

        def get_read_tasks(self, *wanted: Any, **more: Any) -> list[Any]:
            return streamed.tasks(pieces)

    return ray.data.read_datasource(Pieces(), override_num_blocks=len(pieces))


def _read(reference: Any, folder: Path, piece: Piece, seed: int) -> list[Any]:
    """Runs in a task of Ray Data."""
    return [_block(_rows(reference, folder).read(*piece, seed))]


@lru_cache(maxsize=2)  # a training and a validation split: files that they hold open stay open
def _rows(reference: Any, folder: Path) -> Rows:
    import ray

    if folder.is_dir():
        os.chdir(folder)
    return ray.get(reference)


def _block(rows: Pair) -> Any:
    from ray.data.block import BlockAccessor

    return BlockAccessor.batch_to_block(
        {name: np.ascontiguousarray(column) for name, column in zip(("inputs", "targets"), rows, strict=True)}
    )


def _cause(error: BaseException) -> TrainingError:
    """What a task of Ray Data failed with; Ray's own errors in one line."""
    found: BaseException | None = error
    while found is not None:
        inner = getattr(found, "cause", None)
        if isinstance(inner, TrainingError):
            return TrainingError(str(inner).splitlines()[0])  # Ray adds advice of its own
        found = found.__cause__
    return TrainingError(f"Ray Data failed with {type(error).__name__}: {' '.join(str(error).split())}")
