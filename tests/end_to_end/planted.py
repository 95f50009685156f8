"""Mistakes as people make them, planted in the workers while a job runs: each proof must fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from runner import loop, metrics
from runner.communicator import HorovodCommunicator, SingleProcess
from runner.executors.live_workers import LiveWorkers
from runner.ingest import dataloader, row_order, tensors
from runner.ingest.sampler import Share, part
from runner.learner import Learner
from runner.plan import Plan

Mistake = Callable[[], AbstractContextManager[Any]]
CLIP_NORM = 0.01


@contextmanager
def dealt(evenly: Callable[[torch.Tensor, int], torch.Tensor], is_counted: bool = True) -> Iterator[None]:
    """Global batches changed so that all ranks have equally many rows; `is_counted`: the plan knows of it."""

    def shares(plan: Plan, order: torch.Tensor, rank: int, done: int = 0) -> Iterator[Share]:
        for rows in order[: plan.epoch_rows].split(plan.global_batch_size):
            changed = evenly(rows, plan.num_workers)
            mine = changed[part(len(changed), plan.num_workers, rank)]
            yield Share(mine, len(mine), len(changed))

    def rows_at_end(plan: Plan, done: int) -> int:
        batches = torch.arange(plan.epoch_rows).split(plan.global_batch_size)
        return sum(len(evenly(rows, plan.num_workers)) for rows in batches)

    with ExitStack() as patches:
        for module in (tensors, dataloader):
            patches.enter_context(patch.object(module, "shares", shares))
        if is_counted:
            patches.enter_context(patch.object(Plan, "rows_at_end", rows_at_end))
        yield


def padded(rows: torch.Tensor, parts: int) -> torch.Tensor:
    """As torch's DistributedSampler does."""
    return torch.cat([rows, rows[: -len(rows) % parts]])


def truncated(rows: torch.Tensor, parts: int) -> torch.Tensor:
    """As its drop_last does."""
    return rows[: len(rows) // parts * parts]


@contextmanager
def summed_accumulation() -> Iterator[None]:
    """Each micro-batch's loss is its own mean, and their gradients are summed."""
    right = loop.total_weight

    def total_weight(learner: Any, batches: Any, communicator: Any) -> float:
        return right(learner, batches, communicator) / len(batches)

    with patch.object(loop, "total_weight", total_weight):
        yield


@contextmanager
def phantom_step() -> Iterator[None]:
    """The optimizer's state is broadcast as Horovod's documentation says: it takes a step without gradients for it."""
    right = HorovodCommunicator.distribute

    def distribute(self: Any, *arguments: Any) -> Any:
        optimizer = right(self, *arguments)
        self._hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return optimizer

    with patch.object(HorovodCommunicator, "distribute", distribute):
        yield


@contextmanager
def clipped_before_the_average() -> Iterator[None]:
    """Each rank clips its own gradients, a tensor at a time."""

    def clip(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (CLIP_NORM / gradient.norm()).clamp(max=1)

    def clipping(right: Any) -> Any:
        def distribute(self: Any, optimizer: Any, model: Any, *arguments: Any) -> Any:
            for parameter in model.parameters():
                parameter.register_hook(clip)  # runs before Horovod's
            return right(self, optimizer, model, *arguments)

        return distribute

    with ExitStack() as patches:
        patches.enter_context(patch.object(Learner, "clip", lambda self: torch.ones(())))
        for kind in (HorovodCommunicator, SingleProcess):
            patches.enter_context(patch.object(kind, "distribute", clipping(kind.distribute)))
        yield


@contextmanager
def shifted_evaluation() -> Iterator[None]:
    """Every rank but the first begins a row early and ends a row early: one row is counted twice, the last one never."""

    def evaluation_rows(plan: Plan, rank: int, *rest: int) -> Iterator[range]:
        mine = part(plan.val_rows, plan.num_workers, rank)
        early = int(rank > 0)
        yield range(mine.start - early, mine.stop - early)

    with patch.object(tensors, "evaluation_rows", evaluation_rows):
        yield


@contextmanager
def local_metrics() -> Iterator[None]:
    """Torchmetrics as it is without torch.distributed: each rank measures its own rows."""
    with patch.object(metrics, "synchronise", lambda *arguments: None):
        yield


@contextmanager
def unseeded_order() -> Iterator[None]:
    """A permutation that depends on the process."""

    def epoch_order(rows: int, seed: int, epoch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "big"))
        return torch.randperm(rows, generator=generator)

    with patch.object(row_order, "epoch_order", epoch_order):
        yield


MISTAKES: dict[str, Mistake] = {
    "none": nullcontext,
    "padding": partial(dealt, padded),
    "truncation": partial(dealt, truncated),
    "padding that the loop notices": partial(dealt, padded, is_counted=False),
    "summed accumulation": summed_accumulation,
    "phantom step": phantom_step,
    "clipped before the average": clipped_before_the_average,
    "shifted evaluation": shifted_evaluation,
    "local metrics": local_metrics,
    "unseeded order": unseeded_order,
}


class Planted:
    """Live workers that make a mistake."""

    def __init__(self, workers: LiveWorkers, mistake: str) -> None:
        self._workers, self._mistake = workers, mistake

    def run(self, function: Any, job: Any, memory: Any) -> list[Any]:
        return self._workers.run(partial(_mistaken, self._mistake, function), job, memory)

    def train(self, job: Any, memory: Any) -> Any:
        return LiveWorkers.train(self, job, memory)  # type: ignore[arg-type]


def _mistaken(mistake: str, function: Any, *arguments: Any) -> Any:
    """Runs in a worker."""
    with MISTAKES[mistake]():
        return function(*arguments)
