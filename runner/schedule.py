"""The learning rate over a run: a linear warm-up, then any torch scheduler."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from runner.schema import Interval


class Schedule:
    """Steps the optimizer's LR after each optimizer step.

    During the warm-up the LR is peak × (start + (1 − start) × step / warmup_steps); the scheduler's own count begins
    when it ends. `peak` is the LR that the scheduler set when it was built, from the already scaled LR: nothing is
    scaled twice.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        interval: Interval,
        warmup_steps: int,
        warmup_start: float,
        steps_per_epoch: int,
    ) -> None:
        self._optimizer, self._scheduler, self._interval = optimizer, scheduler, interval
        self._warmup_steps, self._warmup_start = warmup_steps, warmup_start
        self._steps_per_epoch = steps_per_epoch
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._step = 0
        if warmup_steps:
            self._warm_up()

    @property
    def lr(self) -> float:
        """The LR of the next step (first parameter group)."""
        return float(self._optimizer.param_groups[0]["lr"])

    def advance(self) -> None:
        """Call once after every optimizer step."""
        self._step += 1
        if self._step <= self._warmup_steps:
            self._warm_up()
        elif self._interval is Interval.step or self._step % self._steps_per_epoch == 0:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "scheduler": self._scheduler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._scheduler.load_state_dict(state["scheduler"])
        if self._step <= self._warmup_steps:
            self._warm_up()

    def _warm_up(self) -> None:
        done = self._step / self._warmup_steps if self._warmup_steps else 1.0
        factor = self._warmup_start + (1 - self._warmup_start) * done
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
