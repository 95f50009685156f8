"""The typed schema behind every config: what a user may write, and its defaults.

Plain dataclasses without OmegaConf, so that a worker can receive an `Experiment` and import nothing for it.
A class with a field `target` is open: the keys it does not name belong to the `_target_` that the group selects,
and are checked against that callable's signature (see build.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Target = dict[str, Any]  # {"_target_": "package.callable", argument: value, …}


class Task(Enum):
    classification = "classification"
    regression = "regression"


class Ingest(Enum):
    tensors = "tensors"
    ray_data = "ray_data"


class Split(Enum):
    train = "train"
    val = "val"


class Interval(Enum):
    step = "step"
    epoch = "epoch"


class Mode(Enum):
    min = "min"
    max = "max"


class Placement(Enum):
    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


class Compression(Enum):
    none = "none"
    fp16 = "fp16"


class Backend(Enum):
    mlflow = "mlflow"
    none = "none"


@dataclass
class Dataset:
    """`target` returns {"train": (inputs, targets), "val": (inputs, targets)}: arrays with one row an example."""

    task: Task = Task.classification
    ingest: Ingest = Ingest.tensors  # arrays in shared memory, or streamed by Ray Data
    drop_last: bool = False  # drop the last, short global batch of an epoch (models with batch norm)
    limit_rows: int | None = None  # keep only the first rows of each split
    val_split: Split = Split.val  # train: evaluate on the training rows (debug=overfit)
    target: Target = field(default_factory=dict)


@dataclass
class Optimizer:
    lr: float = 0.1  # the base learning rate, before scaling
    target: Target = field(default_factory=dict)


@dataclass
class Scheduler:
    """A torch scheduler, counted in steps or epochs after the warm-up."""

    interval: Interval = Interval.step
    warmup_epochs: float = 0.0
    warmup_start: float | None = None  # fraction of the scaled LR; null: the base LR, or a tenth
    target: Target = field(default_factory=dict)


@dataclass
class LRScaling:
    """`target` maps κ = global_batch_size / base_batch_size to the multiplier of the base LR."""

    base_batch_size: int | None = None  # null: trainer.batch_size
    target: Target = field(default_factory=dict)


@dataclass
class Resources:
    CPU: float | None = None  # null: one whole CPU each, or an equal share where the machine has fewer
    GPU: float | None = None  # null: one each where GPUs are used


@dataclass
class Scaling:
    num_workers: int = 2
    use_gpu: bool | None = None  # null: where the machine and the Horovod build have them
    resources_per_worker: Resources = field(default_factory=Resources)
    placement_strategy: Placement = Placement.PACK
    address: str | None = None  # of a Ray cluster; null: RAY_ADDRESS, else a local Ray; "local": always


@dataclass
class Trainer:
    epochs: int = 20
    batch_size: int = 32  # rows a worker and micro-batch
    accumulation_steps: int = 1  # micro-batches a step
    deterministic: bool = False
    limit_batches: int | None = None  # steps an epoch, at most


@dataclass
class Checkpoint:
    enabled: bool = True
    every_epochs: int = 1
    keep: int = 2  # the last ones; the best is kept besides
    monitor: str = "val/loss"
    mode: Mode = Mode.min


@dataclass
class Horovod:
    """Ray's HorovodConfig, hvd.DistributedOptimizer and HOROVOD_* settings of the same names."""

    nics: list[str] | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    verbose: int = 0
    key: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    compression: Compression = Compression.none
    gradient_predivide_factor: float = 1.0
    groups: int | None = None
    sparse_as_dense: bool = False
    fusion_threshold_mb: float = 128.0
    cycle_time_ms: float = 1.0
    cache_capacity: int = 1024
    gloo_timeout_s: int = 30
    stall_warning_s: int = 60
    stall_shutdown_s: int = 0


@dataclass
class Tracking:
    backend: Backend = Backend.mlflow
    uri: str | None = None  # null: MLFLOW_TRACKING_URI, else SQLite under outputs/
    experiment: str | None = None  # null: MLFLOW_EXPERIMENT_NAME, else "runner"
    run_name: str | None = None
    log_model: bool = True
    flush_seconds: float = 1.0


@dataclass
class Experiment:
    """One experiment as the config says it, typed and checked."""

    model: Target
    dataset: Dataset
    optimizer: Optimizer
    scheduler: Scheduler
    lr_scaling: LRScaling
    scaling: Scaling
    trainer: Trainer
    checkpoint: Checkpoint
    horovod: Horovod
    tracking: Tracking
    seed: int = 0
    dry_run: bool = False
    verbose: bool = False
