"""The ingests side by side: time to the first batch, samples/s and memory, on two ranks under a real Ray.

    python benchmarks/ingest.py [runs]

The peer is torch's DataLoader with its DistributedSampler on the same rows and ranks: on arrays with a TensorDataset,
on a Dataset with a transform a row with as many processes. Every case has fresh ranks; cases are interleaved. Rates are
those of the second epoch, memory (PSS: shared pages are divided among those who share them) is a rank's with its
loader's processes, at the end.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from runner.executors import ray_cluster
from runner.ingest import ray_data
from runner.ingest.batches import Place
from runner.ingest.checks import Check
from runner.ingest.dataloader import LoaderIngest
from runner.ingest.rows import Arrays, Items, Splits
from runner.ingest.tensors import TensorIngest, as_tensors
from runner.plan import DataFacts, make_plan
from runner.resources import ResourcePlan
from runner.schema import Task
from tests.fakes import make_experiment

ROWS, SIDE, BATCH, RANKS = 40_000, 28, 32, 2


class Shifted(Dataset):
    """Images moved by up to two pixels and standardised, as an augmentation does: some 20 µs a row."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        shift = torch.randint(-2, 3, (2,)).tolist()
        image = torch.from_numpy(np.roll(self.images[row], shift, axis=(1, 2)))
        return (image - 0.5) / 0.3, int(self.labels[row])


@dataclass(frozen=True)
class Case:
    name: str
    ingest: str  # torch: the peer
    is_dataset: bool = False
    workers: int = 0


CASES = (
    Case("arrays: torch DataLoader", "torch"),
    Case("arrays: tensors", "tensors"),
    Case("arrays: dataloader", "dataloader"),
    Case("arrays: ray_data", "ray_data"),
    Case("Dataset: torch DataLoader", "torch", is_dataset=True),
    Case("Dataset: dataloader", "dataloader", is_dataset=True),
    Case("Dataset: torch DataLoader, 1 process", "torch", is_dataset=True, workers=1),
    Case("Dataset: dataloader, 1 process", "dataloader", is_dataset=True, workers=1),
    Case("Dataset: ray_data", "ray_data", is_dataset=True),
)


class Rank:
    """One rank of one case, a Ray actor."""

    def __init__(self, rank: int) -> None:
        torch.set_num_threads(1)
        self.rank = rank

    def ready(self) -> None:
        return None

    def measure(
        self, case: Case, plan: Any, splits: Splits, shards: dict[str, Any]
    ) -> tuple[float, float, float]:
        """(seconds to the first batch, samples/s in the second epoch, MB)."""
        started = time.perf_counter()
        epoch, close = self._open(case, plan, splits, shards)
        batches = epoch(0)
        next(batches)
        first = time.perf_counter() - started
        for _ in batches:
            pass
        started = time.perf_counter()
        rows = sum(len(inputs) for inputs in epoch(1))
        rate = rows / (time.perf_counter() - started)
        megabytes = sum(map(pss, [psutil.Process(), *psutil.Process().children(recursive=True)]))
        close()
        return first, rate, megabytes

    def _open(self, case: Case, plan: Any, splits: Splits, shards: dict[str, Any]) -> Any:
        place = Place(torch.device("cpu"))
        if case.ingest == "torch":
            return torch_batches(splits["train"], self.rank, case.workers), lambda: None
        if case.ingest == "tensors":
            ingest: Any = TensorIngest(splits, plan, 0, self.rank, place)
        elif case.ingest == "dataloader":
            ingest = LoaderIngest(splits, plan, 0, self.rank, place, case.workers)
        else:
            ingest = ray_data.RayDataIngest(shards, splits, plan, 0, self.rank, place)
        return lambda epoch: (batch.inputs for step in ingest.steps(epoch) for batch in step), ingest.close


def torch_batches(rows: Any, rank: int, workers: int) -> Any:
    found = (
        TensorDataset(*as_tensors((rows.inputs, rows.targets))) if isinstance(rows, Arrays) else rows.found
    )
    sampler = DistributedSampler(found, RANKS, rank)
    context = "forkserver" if workers else None
    loader = DataLoader(
        found, BATCH, sampler=sampler, num_workers=workers, multiprocessing_context=context, persistent_workers=workers > 0
    )  # fmt: skip

    def epoch(number: int) -> Iterator[torch.Tensor]:
        sampler.set_epoch(number)
        return (inputs for inputs, _ in loader)

    return epoch


def pss(process: psutil.Process) -> float:
    """Proportional set size in MB."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


def run(case: Case, plan: Any, splits: Splits) -> tuple[float, float, float]:
    """(slowest first batch, samples/s of all ranks, MB of the largest)."""
    import ray

    ranks = [ray.remote(num_cpus=0.5)(Rank).remote(rank) for rank in range(RANKS)]
    ray.get([rank.ready.remote() for rank in ranks])
    shards: list[dict[str, Any]] = [{} for _ in ranks]
    if case.ingest == "ray_data":
        shards = ray_data.data_config(plan).configure(ray_data.datasets(splits, plan, 0), RANKS)
        splits = ray_data.kept(splits)
    held = ray.put(splits)
    found = [rank.measure.remote(case, plan, held, mine) for rank, mine in zip(ranks, shards, strict=True)]
    first, rate, megabytes = zip(*ray.get(found), strict=True)
    for rank in ranks:
        ray.kill(rank)
    return max(first), sum(rate), max(megabytes)


def main(runs: int) -> None:
    random = np.random.default_rng(0)
    images = random.random((ROWS, 1, SIDE, SIDE), dtype=np.float32)
    labels = random.integers(10, size=ROWS)
    train = Arrays(images, labels)
    check = Check(Task.classification, "train")
    val = Arrays(images[:BATCH], labels[:BATCH])
    experiment = make_experiment({"scaling.num_workers": RANKS, "trainer.batch_size": BATCH})
    facts = DataFacts(ROWS, BATCH, images.shape[1:], 10)
    plan = replace(make_plan(experiment, facts, ResourcePlan(RANKS, 0.5, 0.0, 1.0)))
    ray_cluster.start(None, max(2, os.cpu_count() or 2), (), verbose=False)
    measured: dict[str, list[tuple[float, float, float]]] = {case.name: [] for case in CASES}
    for _ in range(runs):
        for case in CASES:
            rows = Items(Shifted(images, labels), ROWS, check) if case.is_dataset else train
            measured[case.name].append(run(case, plan, {"train": rows, "val": val}))
    print(f"{ROWS} rows of {SIDE * SIDE} numbers, {RANKS} ranks × {BATCH}, medians of {runs}")
    peer = 1.0
    for case in CASES:
        first, rate, megabytes = (
            statistics.median(column) for column in zip(*measured[case.name], strict=True)
        )
        peer = rate if case.ingest == "torch" else peer
        print(
            f"{case.name:38} first batch {first:5.2f} s, {rate:9,.0f} samples/s ({rate / peer:5.2f} × torch), "
            f"{megabytes:5.0f} MB a rank"
        )


if __name__ == "__main__":
    from benchmarks.ingest import (
        main as benchmark,
    )  # by its name, so that a loader's processes can unpickle it

    benchmark(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
