"""Learning-rate scaling rules: κ = global_batch_size / base_batch_size → what the larger batch changes.

Each rule is a pure function that a YAML file in conf/lr_scaling names. It gives the multiplier of the base LR, or a
`Scaled` where it changes more than that. All multipliers are 1 at κ = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scaled:
    """What a rule changes. Its warm-up holds where the scheduler has none of its own."""

    multiplier: float
    warmup_epochs: float | None = None
    warmup_start: float | None = None  # fraction of the scaled LR; None: the base LR
    optimizer: dict[str, Any] = field(default_factory=dict)  # arguments it gets instead of its own
    is_adaptive: bool = False  # × a gain besides, which is measured in every step (see adascale.py)


class RuleError(ValueError):
    """A rule that does not hold: why, what to type instead, and what κ must be less than where κ is the reason."""

    def __init__(self, why: str, instead: str | None = None, below: float = math.inf) -> None:
        super().__init__(why)
        self.instead, self.below = instead, below


def none(kappa: float) -> float:
    """The base LR, whatever the batch."""
    return 1.0


def linear(kappa: float) -> float:
    """κ: k steps of batch B are near one step of batch kB with k times the LR (SGD).

    Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1.
    """
    return kappa


def sqrt(kappa: float) -> float:
    """√κ: keeps the variance of the weight update (Krizhevsky 2014, "One weird trick …", section 5); also for Adam."""
    return math.sqrt(kappa)


def linear_warmup(kappa: float, warmup_epochs: float = 5.0) -> Scaled:
    """κ, reached in equal increments from the base LR over the first 5 epochs: the linear rule does not hold while the
    weights change fast. At κ = 1 there is nothing to warm up to.

    Goyal et al. 2017, section 2.2, "Gradual warmup".
    """
    return Scaled(linear(kappa), warmup_epochs if kappa > 1 else None)


def legw(kappa: float, warmup_epochs: float = 0.3125) -> Scaled:
    """√κ, and a warm-up from 0 over κ times the epochs of the base batch: as many iterations for every batch.

    You et al. 2019, "Large-Batch Training for LSTM and Beyond", linear-epoch gradual warm-up. Their ResNet-50 warms up
    for 0.3125 epochs with batch 1024 and for 10 with 32768.
    """
    return Scaled(sqrt(kappa), kappa * warmup_epochs, 0.0)


def adam_sde(kappa: float, betas: Sequence[float] | None, eps: float | None) -> Scaled:
    """√κ, β → 1 − κ(1 − β) for both betas, ε → ε / √κ: the same stochastic differential equation, whatever the batch.

    `betas` and `eps` are the optimizer's at the base batch, None where it has none. Raises RuleError without them, and
    where κ(1 − β) ≥ 1: such a β would be 0 or less.

    Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", the square-root scaling rule
    for Adam (section 5).
    """
    if betas is None or eps is None:
        missing = "betas" if betas is None else "eps"
        raise RuleError(f"the optimizer has no {missing} to scale", "optimizer=adamw or lr_scaling=sqrt")
    least = min(betas)
    # 10 × (1 − 0.9) is a bit less than 1 in floating point.
    if kappa * (1 - least) >= 1 - 1e-9:
        raise RuleError(f"κ(1 − β) must be below 1, β is {least:g} and κ {kappa:g}", below=1 / (1 - least))
    scaled = [1 - kappa * (1 - beta) for beta in betas]
    return Scaled(sqrt(kappa), optimizer={"betas": scaled, "eps": eps / math.sqrt(kappa)})


def adasum(
    kappa: float, uses_nccl: bool = False, local_size: int = 1, accumulation_steps: int | None = 1
) -> float:
    """1, because Adasum adds gradients that differ and needs no larger LR; `local_size` × `accumulation_steps` where NCCL
    averages within a node and Adasum works between nodes.

    `local_size` is the number of workers of a node. The factors are Horovod's own: docs/adasum_user_guide.rst ("Key
    Takeaways") and examples/pytorch/pytorch_imagenet_resnet50.py of its repository.
    """
    return float(local_size * (accumulation_steps or 1)) if uses_nccl else 1.0


def adascale(kappa: float) -> Scaled:
    """1 × a gain from 1 to κ that is measured in every step; the training is as long as at the base batch, in its steps.

    Johnson et al. 2020, "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", algorithm 1; derived for
    SGD, with or without momentum.
    """
    return Scaled(1.0, is_adaptive=True)
