"""Learning-rate scaling rules: κ = global_batch_size / base_batch_size → the multiplier of the base LR.

Each rule is a pure function that a YAML file in conf/lr_scaling names. All are 1 at κ = 1.
"""

from __future__ import annotations

import math


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
