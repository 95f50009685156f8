"""What conf/executor says; a part of schema.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ExecutorName(Enum):
    """How the workers are started; the modules of executors/ have these names."""

    horovod_trainer = "horovod_trainer"
    elastic = "elastic"
    horovodrun = "horovodrun"
    local = "local"
    ray_executor = "ray_executor"
    train_v2 = "train_v2"


class Keep(Enum):
    """What stays as it is where elastic workers come or go."""

    global_batch = "global_batch"  # every step and its LR; the workers' shares and their accumulation change
    per_worker_batch = (
        "per_worker_batch"  # a worker's share; global batch, steps and the LR (by its rule) change
    )


@dataclass
class Executor:
    name: ExecutorName = ExecutorName.horovod_trainer
    # ray_executor: so many hosts, of as many workers each (null: 1); they give scaling.num_workers.
    num_hosts: int | None = None
    num_workers_per_host: int | None = None
    # elastic: with fewer it waits for more, null: 1. train_v2 on a cluster: null: scaling.num_workers, all the time.
    min_workers: int | None = None
    # All that follow are for elastic. Steps between two copies in memory, from which other workers go on; seconds to wait
    # for min_workers; changes of the workers, at most (null: any number); shortest and longest seconds until a lost worker's
    # place is filled (null: never); a script that prints host:slots lines (null: this machine, or the cluster's nodes).
    max_workers: int | None = None  # null: scaling.num_workers
    keep: Keep = Keep.global_batch
    commit_steps: int = 10
    timeout_s: int = 600
    reset_limit: int | None = None
    cooldown_s: list[int] | None = field(default_factory=lambda: [1, 60])
    discovery: str | None = None

    @property
    def least(self) -> int:
        """Workers of an elastic training."""
        return self.min_workers or 1
