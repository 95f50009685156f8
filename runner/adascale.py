"""AdaScale: how far a step on the large batch gets, in steps on the base batch, measured from the gradients.

Johnson, Agrawal, Gu and Guestrin 2020, "AdaScale SGD: A User-Friendly Algorithm for Distributed Training", algorithm 1
and section 3. The theory is of SGD (with or without momentum): with adaptive optimizers it is a heuristic.

S = num_workers × accumulation_steps micro-batches of the base batch give gradients g₁ … g_S with the mean ḡ. Of σ² =
E‖gᵢ − E g‖² and μ² = ‖E g‖² they give the unbiased estimates

    σ̂² = (mean ‖gᵢ‖² − ‖ḡ‖²) · S / (S − 1)        μ̂² = ‖ḡ‖² − σ̂² / S

and the averages σ², μ² of these over past steps give the gain r = (σ² + μ²) / (σ²/S + μ²), from 1 (no noise: a larger
batch is no better) to S (all noise: S times as good). A step's LR is r × the schedule's after τ steps, and τ grows by r.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from runner.communicator import Communicator
from runner.parameters import values

WINDOW = 1000.0  # the averages' weight of a new step is S / WINDOW: the paper's θ = 1 − S / 1000


class Gain:
    """Of every rule but AdaScale: a step is a step, and nothing is measured."""

    is_on = False

    def begin(self, rows: int) -> float:
        """The gain of the step that begins, on a global batch of so many rows."""
        return 1.0

    def observe(self, rows: int, norm: Tensor | None, scaler: GradScaler, communicator: Communicator) -> None:
        """Learn from a step that is taken: `norm` is the averaged gradient's, before it is clipped; `scaler` scaled
        the losses. Collective."""

    def metrics(self, gain: float, progress: float) -> dict[str, float]:
        """What is reported: the mean gain since the last report, and the steps of the base batch so far."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Equal on all ranks."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class AdaScale(Gain):
    """The gain of each step; one scalar is averaged over the ranks besides the gradients."""

    is_on = True

    def __init__(
        self, parameters: Iterable[Tensor], num_workers: int, accumulation_steps: int, batch_size: int
    ) -> None:
        """`batch_size` is the base batch: the rows of one worker and micro-batch."""
        self._scale, self._accumulation_steps = num_workers * accumulation_steps, accumulation_steps
        self._batch_size = batch_size
        self._norms: list[
            Tensor
        ] = []  # of this rank's gradients of the step: each parameter's, each micro-batch's
        self._noise, self._signal, self._steps = 0.0, 0.0, 0  # σ², μ², and of how many steps
        if self._scale > 1:
            for parameter in parameters:
                # It gets the gradient of one backward, before Horovod averages, and of a tied parameter once.
                parameter.register_hook(self._add)

    def begin(self, rows: int) -> float:
        self._norms.clear()
        # A short last batch is of fewer base batches.
        scale = min(self._scale, max(1.0, rows / self._batch_size))
        return gain_ratio(self._noise, self._signal, scale) if self._steps else 1.0

    def observe(self, rows: int, norm: Tensor | None, scaler: GradScaler, communicator: Communicator) -> None:
        """Neither a short batch, whose micro-batches are unequal, nor an overflow of float16 tells anything."""
        squared_norm = math.nan if norm is None else float(norm) ** 2
        if self._scale == 1 or rows < self._scale * self._batch_size or not math.isfinite(squared_norm):
            return
        norms = torch.stack([norm.double() for norm in self._norms])
        mine = norms.square().sum().reshape(1).cpu()
        squares = float(communicator.allreduce_mean(mine)) / scaler.get_scale() ** 2
        # The ranks' average of the summed micro-batches is the mean gradient: gᵢ is accumulation_steps × what was seen.
        mean_square = self._accumulation_steps * squares
        if not math.isfinite(mean_square):
            return
        noise = (mean_square - squared_norm) * self._scale / (self._scale - 1)
        signal = squared_norm - noise / self._scale
        self._steps += 1
        # The plain mean of the first steps, then a moving average (section 3).
        weight = max(1 / self._steps, min(1.0, self._scale / WINDOW))
        self._noise += weight * (noise - self._noise)
        self._signal += weight * (signal - self._signal)

    def metrics(self, gain: float, progress: float) -> dict[str, float]:
        return {"adascale/gain": gain, "adascale/steps": progress}

    def state_dict(self) -> dict[str, Any]:
        """Of the base batch, so that it holds for another number of workers."""
        return {"noise": self._noise, "signal": self._signal, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._noise, self._signal, self._steps = state["noise"], state["signal"], state["steps"]

    def _add(self, gradient: Tensor) -> None:
        # At once: Horovod averages in place, and the next micro-batch is added to it.
        self._norms.append(torch.linalg.vector_norm(values(gradient)))


def gain_ratio(noise: float, signal: float, scale: float) -> float:
    """r = (σ² + μ²) / (σ²/S + μ²) in [1, S], for σ² = `noise` and μ² = `signal` at the base batch and S = `scale`.

    Averaged estimates may be a little below 0, which stands for 0.
    """
    noise, signal = max(noise, 0.0), max(signal, 0.0)
    if noise + signal == 0:
        return 1.0
    return min(scale, max(1.0, (noise + signal) / (noise / scale + signal)))
