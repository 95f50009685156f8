"""torch's DataLoader over our own batches: the same rows to the same ranks at the same steps as `tensors`.

`dataset.loader_workers` processes read ahead: so many for training, and as many for validation, which stay until the
ingest is closed. They are not forked from the rank itself, whose Horovod threads a fork would break, but from a clean
server process. Arrays are read in the rank, whatever `loader_workers` says: taking rows out of shared memory costs
less than handing them from one process to another.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from runner.errors import TrainingError
from runner.ingest.batches import Columns, MicroBatch, Place, evaluation_rows, micro_batches
from runner.ingest.checks import Pair
from runner.ingest.row_order import Order, Sampler
from runner.ingest.rows import Arrays, Rows, Splits, row_bytes
from runner.ingest.sampler import shares
from runner.ingest.tensors import as_tensors
from runner.plan import Plan

PRELOADED = ("torch", "numpy", "ray")  # imported once by the server, if the rank has them


class LoaderIngest:
    """Batches of one rank."""

    def __init__(
        self,
        splits: Splits,
        plan: Plan,
        seed: int,
        rank: int,
        place: Place,
        workers: int = 0,
        sampler: Sampler | None = None,
    ) -> None:
        self._splits, self._plan, self._seed, self._rank = splits, plan, seed, rank
        self._place, self._workers = place, workers
        self._order = Order(plan, seed, len(splits["train"]), sampler)
        self._loaders: dict[str, Loader] = {}

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        order, seed = self._order(epoch), self._seed + epoch
        wanted = (Request(share.rows.tolist(), seed) for share in shares(self._plan, order, self._rank, done))
        found = self._loader("train").batches(wanted)
        for share, columns in zip(shares(self._plan, order, self._rank, done), found, strict=True):
            yield micro_batches(columns, share.counted, share.global_rows, self._plan, self._place)

    def order(self, epoch: int) -> tuple[int, int]:
        return self._order.signature(epoch)

    def evaluation(self) -> Iterator[Columns]:
        mine = evaluation_rows(self._plan, self._rank, row_bytes(self._splits["val"]))
        wanted = (Request(rows, self._seed) for rows in mine)
        for inputs, targets in self._loader("val").batches(wanted):
            yield self._place(inputs), self._place(targets)

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()
        self._loaders.clear()

    def _loader(self, split: str) -> Loader:
        if split not in self._loaders:
            rows = self._splits[split]
            workers = 0 if isinstance(rows, Arrays) else self._workers
            self._loaders[split] = Loader(rows, workers, self._place.device.type == "cuda")
        return self._loaders[split]


@dataclass(frozen=True)
class Request:
    """A batch to be read: row numbers, and the seed of what the dataset draws."""

    rows: list[int] | range
    seed: int


@dataclass
class Requests:
    """The batch sampler: whatever is wanted next."""

    wanted: Iterable[Request] = field(default_factory=list)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wanted)


class Fetch(Dataset[Any]):
    """Answers a DataLoader's requests, in the rank or in a process of the loader."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __getitems__(self, request: Request) -> Pair | TrainingError:
        # Returned, for torch would raise another error whose message is the trace of both.
        try:
            if isinstance(request.rows, range):
                return self._rows.read(request.rows.start, request.rows.stop, request.seed)
            return self._rows.take(request.rows, request.seed)
        except TrainingError as error:
            return TrainingError(str(error))


class Loader:
    """A DataLoader for one split."""

    def __init__(self, rows: Rows, workers: int, pin_memory: bool) -> None:
        context = None
        if workers:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([name for name in PRELOADED if name in sys.modules])
        self._requests, self._workers = Requests(), workers
        self._loader: Any = DataLoader(
            Fetch(rows),
            batch_sampler=self._requests,
            num_workers=workers,
            collate_fn=_collate,
            pin_memory=pin_memory,
            multiprocessing_context=context,
            persistent_workers=workers > 0,
            worker_init_fn=_end_with_the_rank,
            generator=torch.Generator(),  # torch draws a seed; the training's own random numbers stay as they are
        )

    def batches(self, wanted: Iterable[Request]) -> Iterator[Columns]:
        """A batch a request, in order; an earlier iterator that was not finished ends."""
        self._requests.wanted = wanted
        found = iter(self._loader)
        while True:
            try:
                batch = next(found)
            except StopIteration:
                return
            except RuntimeError as error:
                raise TrainingError(f"dataset.loader_workers={self._workers}: {error}") from error
            if isinstance(batch, TrainingError):
                raise batch
            yield batch

    def close(self) -> None:
        running = getattr(self._loader, "_iterator", None)
        if running is not None:
            running._shutdown_workers()
        self._loader = None


def _collate(found: Any) -> Columns | TrainingError:
    return found if isinstance(found, TrainingError) else as_tensors(found)


def _end_with_the_rank(worker: int) -> None:
    """A rank that is killed takes its loader's processes with it; torch only watches the server, which outlives it."""
    rank = multiprocessing.parent_process()
    assert rank

    def end() -> None:
        wait([rank.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
