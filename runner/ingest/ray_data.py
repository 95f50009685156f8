"""Ray Data ingest: training rows streamed from Ray's object store (which spills to disk), each once an epoch.

Ray's own split drops rows to make shards equal, and deals them anew each time. Here rank r owns the same contiguous
rows in every epoch and run, just as many as its shares of all global batches; they are shuffled within a buffer, by
seed + epoch. So it repeats itself exactly, but is not the order of `tensors`, where rows change ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from runner.errors import TrainingError
from runner.ingest.arrays import Array
from runner.ingest.batches import Columns, MicroBatch, evaluation_batches, micro_batches
from runner.ingest.sampler import part
from runner.ingest.tensors import as_tensors
from runner.plan import Plan

BUFFERED_BATCHES = 32  # rows to shuffle among, in batches of a rank
BLOCK_ROWS = 4096


def shard_sizes(plan: Plan) -> list[int]:
    """Rows of each rank: its shares of the full global batches and of the short last one; together all rows."""
    full, rest = divmod(plan.train_rows, plan.global_batch_size)
    shares = [part(rest, plan.num_workers, rank) for rank in range(plan.num_workers)]
    return [full * plan.global_batch_size // plan.num_workers + share.stop - share.start for share in shares]


def dataset(columns: tuple[Array, Array]) -> Any:
    """A ray.data.Dataset of the rows, in order, with columns `inputs` and `targets`."""
    import ray

    inputs, targets = columns
    starts = range(0, len(inputs), BLOCK_ROWS)
    blocks = [
        {"inputs": inputs[at : at + BLOCK_ROWS], "targets": targets[at : at + BLOCK_ROWS]} for at in starts
    ]
    return ray.data.from_blocks([_block(block) for block in blocks])


def data_config(plan: Plan) -> Any:
    """Ray Train's DataConfig that gives every rank its own rows and loses none."""
    from ray.train import DataConfig

    class EveryRow(DataConfig):
        def configure(
            self, datasets: dict[str, Any], world_size: int, *rest: Any, **more: Any
        ) -> list[dict[str, Any]]:
            ends = list(accumulate(shard_sizes(plan)))
            options = self._resolve_execution_options("train")
            options.preserve_order = True
            whole = datasets["train"]
            whole.context.execution_options = options
            return [{"train": shard.iterator()} for shard in whole.split_at_indices(ends[:-1])]

    return EveryRow()


class RayDataIngest:
    """Batches of one rank from its shard (a ray.data.DataIterator); validation rows come from memory."""

    def __init__(
        self, shard: Any, val: tuple[Array, Array], plan: Plan, seed: int, rank: int, device: torch.device
    ) -> None:
        self._shard, self._val, self._plan = shard, as_tensors(val), plan
        self._seed, self._rank, self._device = seed, rank, device

    def steps(self, epoch: int) -> Iterator[list[MicroBatch]]:
        plan = self._plan
        mine = plan.batch_size * plan.accumulation_steps
        batches = self._shard.iter_torch_batches(
            batch_size=mine,
            local_shuffle_buffer_size=BUFFERED_BATCHES * mine,
            local_shuffle_seed=self._seed + epoch,
            device="cpu",
        )
        batches = iter(batches)
        filler: Columns = (self._val[0][:1], self._val[1][:1])
        for step in range(plan.steps_per_epoch):
            rows = min(plan.global_batch_size, plan.train_rows - step * plan.global_batch_size)
            share = part(rows, plan.num_workers, self._rank)
            wanted = share.stop - share.start
            batch = next(batches, None) if wanted else {"inputs": filler[0][:0], "targets": filler[1][:0]}
            if batch is None or len(batch["inputs"]) != wanted:
                found = 0 if batch is None else len(batch["inputs"])
                raise TrainingError(
                    f"Ray Data gave rank {self._rank} {found} rows of {wanted} at step {step}"
                )
            columns = (batch["inputs"], batch["targets"])
            yield micro_batches(columns, filler, rows, plan, self._device)

    def evaluation(self) -> Iterator[Columns]:
        return evaluation_batches(self._val, self._plan, self._rank, self._device)


def _block(columns: dict[str, Array]) -> Any:
    from ray.data.block import BlockAccessor

    return BlockAccessor.batch_to_block(
        {name: np.ascontiguousarray(column) for name, column in columns.items()}
    )
