"""The typed schema of `executor`; plain dataclasses, as in schema.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ExecutorName(Enum):
    """How the workers are started; the modules of executors/ have these names."""

    horovod_trainer = "horovod_trainer"
    local = "local"
    elastic = "elastic"


class Keep(Enum):
    """What stays as it is where elastic workers come or go."""

    global_batch = "global_batch"  # every step and its LR; the workers' shares and their accumulation change
    per_worker_batch = (
        "per_worker_batch"  # a worker's share; global batch, steps and the LR (by its rule) change
    )


@dataclass
class Executor:
    name: ExecutorName = ExecutorName.horovod_trainer
    # All that follow are for executor=elastic.
    min_workers: int = 1  # with fewer the training waits for more
    max_workers: int | None = None  # null: scaling.num_workers
    keep: Keep = Keep.global_batch
    commit_steps: int = (
        10  # steps between two copies in memory, from which a training with other workers goes on
    )
    timeout_s: int = 600  # to wait for min_workers
    reset_limit: int | None = None  # changes of the workers, at most; null: any number
    cooldown_s: list[int] | None = field(
        default_factory=lambda: [1, 60]
    )  # of a lost worker's place; null: never again
    discovery: str | None = (
        None  # a script that prints host:slots lines; null: this machine, or the cluster's nodes
    )
