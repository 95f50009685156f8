"""The typed schema behind every config: what a user may write, and its defaults.

Plain dataclasses without OmegaConf, so that a worker can receive an `Experiment` and import nothing for it.
A class with a field `target` is open: the keys it does not name belong to the `_target_` that the group selects,
and are checked against that callable's signature (see build.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from runner.executor_schema import Executor
from runner.sweep_schema import Search, Sweep

Target = dict[str, Any]  # {"_target_": "package.callable", argument: value, …}


UNCOUNTED = -100  # a language model's target that is not counted, as in torch


class Task(Enum):
    classification = "classification"  # one label a row: int64 [rows]
    multilabel = "multilabel"  # each label 0 or 1: float [rows, labels]
    regression = "regression"  # float [rows, k]
    language_modeling = "language_modeling"  # next tokens: int64 [rows, time], −100 is not counted


class Ingest(Enum):
    tensors = "tensors"
    dataloader = "dataloader"
    ray_data = "ray_data"


class Precision(Enum):
    float32 = "float32"
    float64 = "float64"
    bf16 = "bf16"  # autocast; parameters stay float32
    fp16 = "fp16"  # autocast with loss scaling


class Split(Enum):
    train = "train"
    val = "val"


class OnNonfinite(Enum):
    stop = "stop"  # end the training at that step
    skip = "skip"  # leave the step out
    ignore = "ignore"  # do not look


class Resume(Enum):
    never = "never"
    auto = "auto"  # continue an unfinished run of the same config


class Study(Enum):
    lr_scaling = "lr_scaling"  # rules × batches × seeds: table, plot, exponent, verdicts (report/study.py)


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


class Op(Enum):
    average = "average"
    adasum = "adasum"


class Backend(Enum):
    mlflow = "mlflow"
    none = "none"


class OnOutage(Enum):
    refuse = "refuse"  # to start
    spool = "spool"  # train, and record the run when the store answers


@dataclass
class Model:
    freeze: str | None = None  # a regular expression: parameters whose name it finds do not train
    init_from: str | None = None  # weights: a checkpoint folder, a .safetensors file, runs:/<run_id>
    init_strict: bool = True  # false: take what fits by name and shape
    target: Target = field(default_factory=dict)


@dataclass
class Dataset:
    """`target` returns {"train": split, "val": split}; a split is a pair of arrays (inputs, targets) with one row an
    example, a map-style torch Dataset, or a source with `read(start, stop)` (see ingest/rows.py)."""

    task: Task = Task.classification
    ingest: Ingest = Ingest.tensors  # shared memory, torch's DataLoader, or streamed by Ray Data
    loader_workers: int = 0  # processes a DataLoader
    shuffle_rows: int | None = None  # ray_data: rows to shuffle among; null: 32 batches of a worker
    drop_last: bool = False  # drop the last, short global batch of an epoch (models with batch norm)
    limit_rows: int | None = None  # keep only the first rows of each split
    val_split: Split = Split.val  # train: evaluate on the training rows (debug=overfit)
    target: Target = field(default_factory=dict)


@dataclass
class Optimizer:
    lr: float = 0.1  # the base learning rate, before scaling
    decay_norms_and_biases: bool = True  # false: no weight decay on parameters of fewer than two dimensions
    # Rules, the first that fits a parameter wins: {match: regex, min_ndim: n, max_ndim: n, <option>: value, …}.
    # An `lr` in a rule is a base LR too.
    param_groups: list[dict[str, Any]] = field(default_factory=list)
    target: Target = field(default_factory=dict)


@dataclass
class Scheduler:
    """A torch scheduler, counted in steps or epochs after the warm-up; ReduceLROnPlateau takes the monitored metric."""

    interval: Interval = Interval.step
    warmup_epochs: float | None = None  # null: the LR rule's, else none
    warmup_steps: int | None = None  # instead of warmup_epochs
    warmup_start: float | None = (
        None  # fraction of the scaled LR; null: the rule's, else the base LR, or a tenth
    )
    target: Target = field(default_factory=dict)


@dataclass
class Loss:
    """By dataset.task; a `target` of one's own is called with (outputs, targets) and gives a loss a row, an element
    (averaged over the row), or their mean."""

    label_smoothing: float = 0.0
    class_weights: Any = None  # a weight a class, or "balanced": rows / (classes × rows of the class)
    target: Target | None = None


@dataclass
class LRScaling:
    """`target` maps κ = global_batch_size / base_batch_size to the multiplier of the base LR, or to a lr_scaling.Scaled.

    What its YAML leaves at null is the optimizer's argument of that name.
    """

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
    custom_resources: dict[str, float] = field(default_factory=dict)  # of a Ray cluster, a worker
    accelerator_type: str | None = None  # a worker's GPU, as Ray calls it: A100
    placement_strategy: Placement = Placement.PACK
    address: str | None = None  # of a Ray cluster; null: RAY_ADDRESS, else a local Ray; "local": always


@dataclass
class Trainer:
    epochs: int = 20
    max_steps: int | None = None  # optimizer steps, instead of epochs
    batch_size: int = 32  # rows a worker and micro-batch
    accumulation_steps: int = 1  # micro-batches a step
    deterministic: bool = False
    limit_batches: int | None = None  # steps an epoch, at most
    precision: Precision = Precision.float32
    clip_norm: float | None = None  # L2 norm of the averaged gradient, at most
    clip_value: float | None = None  # each element of the averaged gradient, at most
    ema_decay: float | None = None  # keep a moving average of the weights, which is evaluated and stored
    compile: bool = False  # torch.compile
    validate_every_epochs: int = 1
    validate_every_steps: int | None = None  # instead of validate_every_epochs
    patience: int | None = None  # stop after so many validations without a better checkpoint.monitor
    min_delta: float = 0.0  # what counts as better for `patience`
    log_norms: bool = False  # norms of gradient and parameters
    profile_steps: int | None = None  # torch.profiler over the first steps, kept in profile/
    on_nonfinite: OnNonfinite = OnNonfinite.stop  # a NaN or infinite loss or gradient
    max_failures: int = 3  # restarts after a lost process, from the last checkpoint
    watchdog_seconds: float | None = 300.0  # end a rank that makes no progress for so long; null: never


@dataclass
class Checkpoint:
    enabled: bool = True
    every_epochs: int | None = 1
    every_steps: int | None = None  # optimizer steps
    every_minutes: float | None = None
    keep: int = 2  # the last ones
    keep_best: int = 1  # and the best ones
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
    op: Op = Op.average
    compression: Compression = Compression.none
    gradient_predivide_factor: float = 1.0
    groups: int | None = None
    sparse_as_dense: bool = False
    fusion_threshold_mb: float = 128.0
    cycle_time_ms: float = 1.0
    cache_capacity: int = 1024
    gloo_timeout_s: int = 30
    stall_warning_s: int = 60
    stall_shutdown_s: int = 600  # behind trainer.watchdog_seconds
    timeline: bool = False  # HOROVOD_TIMELINE, kept in profile/


@dataclass
class Tracking:
    backend: Backend = Backend.mlflow
    uri: str | None = None  # null: MLFLOW_TRACKING_URI, else SQLite under outputs/
    experiment: str | None = None  # null: MLFLOW_EXPERIMENT_NAME, else "runner"
    run_name: str | None = None
    log_model: bool = True
    plots: bool = True
    flush_seconds: float = 1.0
    on_outage: OnOutage = OnOutage.refuse  # what to do where the store does not answer at the start


CHECKS = ("resources", "horovod", "store", "nodes", "batch", "memory", "disk")


@dataclass
class Experiment:
    """One experiment as the config says it, typed and checked."""

    model: Model
    dataset: Dataset
    loss: Loss
    metrics: dict[str, Any]  # name: node of a torchmetrics metric
    optimizer: Optimizer
    scheduler: Scheduler
    lr_scaling: LRScaling
    scaling: Scaling
    trainer: Trainer
    checkpoint: Checkpoint
    horovod: Horovod
    tracking: Tracking
    executor: Executor = field(default_factory=Executor)
    search: Search = field(default_factory=Search)
    sweep: Sweep = field(default_factory=Sweep)
    seed: int = 0
    resume: Resume = Resume.never
    study: Study | None = None  # what the jobs of a multirun are put together to
    allowed_targets: list[str] = field(default_factory=list)  # prefixes besides those of targets.py
    skip_checks: list[str] = field(default_factory=list)  # names of CHECKS
    dry_run: bool = False
    verbose: bool = False
