"""The learning rate over a run: a linear warm-up, then any torch scheduler."""

from __future__ import annotations

import warnings
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, ReduceLROnPlateau, StepLR

from runner.errors import refuse
from runner.schema import Interval

# What schedulers keep in the optimizer's parameter groups.
KEPT = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")


class Schedule:
    """Steps the optimizer's LR after each optimizer step.

    The LR is the scheduler's × (start + (1 − start) × step / warmup_steps) during the warm-up, and the scheduler's
    after it. That one was built from the already scaled LR: nothing is scaled twice. All parameter groups have the
    same factor and the same count, so they keep the ratio of their LRs.

    The scheduler's count begins when the warm-up ends, but for those that name a moment: epoch 30 of StepLR and
    MultiStepLR is the training's, warm-up included (as in Goyal et al. 2017). ReduceLROnPlateau is stepped by
    `measured` instead.

    AdaScale's steps are steps of the base batch, and all lengths are counted in these: a step advances the count by its
    gain, and is taken with the LR of the whole steps so far × the gain.

    `total_steps` is the training's length; a scheduler that ends earlier and cannot go on (OneCycleLR) is refused.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        interval: Interval,
        warmup_steps: int,
        warmup_start: float,
        steps_per_epoch: int,
        total_steps: int | None = None,
    ) -> None:
        self._optimizer, self._scheduler, self._interval = optimizer, scheduler, interval
        self._warmup_steps, self._warmup_start = warmup_steps, warmup_start
        self._steps_per_epoch = steps_per_epoch
        self._is_plateau = isinstance(scheduler, ReduceLROnPlateau)
        self._counts_warmup = isinstance(getattr(scheduler, "own", scheduler), (StepLR, MultiStepLR))
        self._step, self._part = 0, 0.0  # whole steps, and what is left of the gains
        # What a stored state must have been made with, to be continued as it is.
        self._lengths: dict[str, Any] = {
            "peaks": list(scheduler.get_last_lr()),
            "total_steps": total_steps,
            "warmup": [warmup_steps, warmup_start],
            "steps_per_epoch": steps_per_epoch,
        }
        self._kept = [{key: group[key] for key in KEPT if key in group} for group in optimizer.param_groups]
        if total_steps is not None:
            self._refuse_too_short(total_steps)
        self._set_lr()

    @property
    def lr(self) -> float:
        """The LR of the next step (first parameter group)."""
        return float(self._optimizer.param_groups[0]["lr"])

    def scale(self, gain: float) -> None:
        """Take the next step with `gain` times the LR."""
        self._set_lr(gain)

    def advance(self, gain: float = 1.0) -> None:
        """Call once after every optimizer step; `gain` is the steps of the base batch that it was worth."""
        whole = int(self._part + gain)
        self._part += gain - whole
        for _ in range(whole):
            if gain > 1 and self._step == self._lengths["total_steps"]:
                break  # the training's last step was worth more than was left, and a scheduler may have an end
            self._advance()
        self._set_lr()

    def _advance(self) -> None:
        self._step += 1
        if self._is_due(self._step):
            # Torch computes the next LR from the group's, which must not be the warm-up's.
            self._set_lr(warm_up=False)
            self._scheduler.step()

    def measured(self, value: float) -> None:
        """Call after every validation with the monitored metric. It concerns ReduceLROnPlateau, after the warm-up."""
        if self._is_plateau and self._step >= self._warmup_steps:
            self._scheduler.step(value)  # type: ignore[arg-type]  # its argument is the metric

    def state_dict(self) -> dict[str, Any]:
        count = {"step": self._step, "part": self._part}
        return {**count, "lengths": self._lengths, "scheduler": self._scheduler.state_dict()}

    def resume(self, state: dict[str, Any], steps: float) -> None:
        """Go on as after so many steps, from the state of the schedule that was in force until then.

        Where lengths or LRs are not what they were (more epochs, another global batch), it stands where a training
        that always had today's would stand. ReduceLROnPlateau, which no count of steps determines, keeps what it has
        measured, and its LRs relative to the peak. Call it after the optimizer's own state was loaded.
        """
        if state["lengths"] == self._lengths:
            self._step, self._part = state["step"], state["part"]
            self._scheduler.load_state_dict(state["scheduler"])
        elif self._is_plateau:
            self._step, self._part = int(steps), steps % 1
            self._resume_plateau(state)
        else:
            # The scheduler's own first values, which the loaded optimizer has not.
            for group, kept in zip(self._optimizer.param_groups, self._kept, strict=True):
                group.update(kept)
            self._set_lr(warm_up=False)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self.advance(steps)
        self._set_lr()

    def _resume_plateau(self, state: dict[str, Any]) -> None:
        lrs = zip(
            state["scheduler"]["_last_lr"], state["lengths"]["peaks"], self._lengths["peaks"], strict=True
        )
        self._scheduler.load_state_dict(state["scheduler"])
        self._scheduler._last_lr = [
            lr if peak == before else lr / before * peak  # not a bit off where nothing changed
            for lr, before, peak in lrs
        ]

    def _is_due(self, step: int) -> bool:
        """Whether the scheduler is stepped after the training's `step`-th step."""
        if self._is_plateau or (step <= self._warmup_steps and not self._counts_warmup):
            return False
        return self._interval is Interval.step or step % self._steps_per_epoch == 0

    def _set_lr(self, gain: float = 1.0, warm_up: bool = True) -> None:
        factor = gain
        if warm_up and self._step < self._warmup_steps:
            factor *= self._warmup_start + (1 - self._warmup_start) * self._step / self._warmup_steps
        for group, lr in zip(self._optimizer.param_groups, self._scheduler.get_last_lr(), strict=True):
            group["lr"] = lr * factor

    def _refuse_too_short(self, total_steps: int) -> None:
        length = getattr(self._scheduler, "total_steps", None)
        if length is None:
            return
        needed = sum(self._is_due(step) for step in range(1, total_steps + 1))
        if length < needed:
            raise refuse(
                "scheduler.total_steps",
                length,
                f"the run steps the scheduler {needed} times after the warm-up",
                f"scheduler.total_steps={needed}",
            )
