"""Where a training stands: what the loop changes, and what it yields."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

Metrics = dict[str, float]


@dataclass
class TrainState:
    """Where the training stands, equal on all ranks. Epochs, steps and rows are those that are done."""

    epoch: int = 0
    step: int = 0
    rows: int = 0  # of the epoch that has begun
    best: float | None = None  # monitored value
    best_step: int | None = None
    patience_value: float | None = None  # what the next validation has to beat by Goal.min_delta
    stale: int = 0  # validations since it was beaten
    stopped: bool = False  # early
    gained: float = 0.0  # what AdaScale's steps were worth beyond one step of the base batch each
    lr: float | None = None  # of the last step
    ended: bool = False  # by the plan: the last step is done

    @property
    def progress(self) -> float:
        """Steps as the plan's length counts them."""
        return self.step + self.gained


@dataclass
class Stretch:
    """This rank's sums over the steps since the last report."""

    loss: Tensor = field(default_factory=lambda: torch.zeros(3).double())  # [Σ losses, Σ weights, rows]
    norms: Tensor = field(default_factory=lambda: torch.zeros(2).double())  # [Σ gradient norms, how many]
    steps: int = 0
    expected: int = 0  # rows of the global batches
    gains: float = 0.0  # Σ of AdaScale, equal on all ranks
    skipped: int = 0  # of them, for a loss or gradient that was not finite
    seconds: float = 0.0  # before `started`, where a resumed training goes on
    waited: float = 0.0  # of `seconds`, for other ranks
    started: float = field(default_factory=time.perf_counter)


class NewLR(NamedTuple):
    """The first step, and when it was taken, with another LR than the step before."""

    step: int
    milliseconds: int  # since 1970
    lr: float


class Moment(NamedTuple):
    """When the loop pauses: metrics after an epoch or a validation (else none), a checkpoint that is due, or both."""

    metrics: Metrics
    is_due: bool
    lrs: list[NewLR]  # since the last moment, but for a step whose LR is among the metrics
