"""What conf/executor says; a part of schema.py."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ExecutorName(Enum):
    """How the workers are started; the modules of executors/ have these names."""

    horovod_trainer = "horovod_trainer"
    horovodrun = "horovodrun"
    local = "local"
    ray_executor = "ray_executor"
    train_v2 = "train_v2"


@dataclass
class Executor:
    name: ExecutorName = ExecutorName.horovod_trainer
    num_hosts: int | None = (
        None  # ray_executor: so many, of as many workers each; they give scaling.num_workers
    )
    num_workers_per_host: int | None = None  # null: 1
    min_workers: int | None = None  # of train_v2 on a cluster; null: scaling.num_workers, all the time
