"""What configure_optimizers chose, with the LR scaled and the scheduler on Horovod's optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, ReduceLROnPlateau

from runner import build
from runner.errors import ConfigError, nearest, refuse
from runner.ledger import LearningRate
from runner.lightning.log import PREFIX
from runner.lr_scaling import adam_sde
from runner.schema import Experiment, Interval

ScheduleWith = Callable[[Optimizer], tuple[LRScheduler, Interval]]
SCHEDULER_KEYS = ("scheduler", "interval", "frequency", "monitor", "name", "strict", "reduce_on_plateau")


@dataclass(frozen=True)
class Choice:
    """One call of configure_optimizers, read."""

    optimizer: Optimizer
    scheduler: Any = None  # LRScheduler, ReduceLROnPlateau, or what has step() and state_dict()
    interval: Interval = Interval.epoch
    monitor: str | None = None  # that ReduceLROnPlateau follows, as runner names it: "val/loss"


class ScaledScheduler(LRScheduler):
    """`own`, the module's scheduler, with every LR × multiplier on the optimizer that trains.

    `own` works on an optimizer of its own that is never stepped: LRs of any origin (eta_min, max_lr, a lambda) are
    scaled alike, and nothing that a warm-up or Horovod does to the training one's groups disturbs its count. Other
    options that it changes (OneCycleLR's momentum) are passed on as they are.
    """

    def __init__(self, own: Any, pattern: Optimizer, optimizer: Optimizer, multiplier: float) -> None:
        self.own, self.optimizer = own, optimizer
        self._pattern, self._multiplier = pattern, multiplier
        pattern._opt_called = True  # type: ignore[attr-defined]  # else torch warns that it does not step
        self._follow()

    def step(self, epoch: int | None = None) -> None:
        self.own.step()
        self._follow()

    def get_last_lr(self) -> list[Any]:
        return [group["lr"] * self._multiplier for group in self._pattern.param_groups]

    def state_dict(self) -> dict[str, Any]:
        # Most schedulers compute the next LR from the group's, so the groups belong to the state.
        return {"own": self.own.state_dict(), "groups": self._pattern.state_dict()["param_groups"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.own.load_state_dict(state_dict["own"])
        self._pattern.load_state_dict({"state": {}, "param_groups": state_dict["groups"]})
        self._follow()

    def _follow(self) -> None:
        for group, own in zip(self.optimizer.param_groups, self._pattern.param_groups, strict=True):
            group.update({name: own[name] for name in self._pattern.defaults if name in own})
            group["lr"] = own["lr"] * self._multiplier


def configure(model: nn.Module, multiplier: float) -> tuple[Optimizer, ScheduleWith]:
    """(optimizer with the LR of each group × multiplier, what schedules the optimizer that Horovod makes of it).

    Calls configure_optimizers twice: one optimizer trains, the scheduler keeps the other. Raises ConfigError.
    """
    pattern, trained = choose(model), choose(model).optimizer
    for group in trained.param_groups:
        group["lr"] = group["lr"] * multiplier
        # model.freeze came before: Horovod refuses a parameter that will have no gradient.
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]

    def schedule_with(optimizer: Optimizer) -> tuple[LRScheduler, Interval]:
        own = pattern.scheduler
        if own is None:
            return ConstantLR(optimizer, factor=1.0, total_iters=0), Interval.step
        if isinstance(own, ReduceLROnPlateau):  # keeps no LR but the group's, and these bounds
            own.optimizer = optimizer
            own.min_lrs = [lr * multiplier for lr in own.min_lrs]
            own.eps *= multiplier
            own._last_lr = [group["lr"] for group in optimizer.param_groups]
            return own, pattern.interval
        return ScaledScheduler(own, pattern.optimizer, optimizer, multiplier), pattern.interval

    return remembering(trained), schedule_with


def remembering(optimizer: Optimizer) -> Optimizer:
    """The same optimizer, of a class that remembers its arguments: Horovod constructs the class again from the groups
    alone, which loses what is no option of a group, and fails where an argument is needed."""
    original, plain = type(optimizer), (bool, int, float, str, type(None))
    known = inspect.signature(original).parameters
    arguments = {name: value for name, value in optimizer.defaults.items() if name in known}
    attributes = {name: value for name, value in vars(optimizer).items() if isinstance(value, plain)}

    def construct(self: Optimizer, params: Any) -> None:
        original.__init__(self, params, **arguments)
        vars(self).update(attributes)

    optimizer.__class__ = type(original.__name__, (original,), {"__init__": construct})
    return optimizer


def base_lr(model: nn.Module) -> float:
    """The LR that the module chose for its first group, before scaling: the peak where its scheduler has one
    (OneCycleLR), else what the optimizer was given."""
    group = choose(model).optimizer.param_groups[0]
    return float(group.get("max_lr", group.get("initial_lr", group["lr"])))


def check_rule(experiment: Experiment, rate: LearningRate | None = None) -> None:
    """Raise ConfigError for a scaling rule that changes the optimizer's arguments: a module makes its own optimizer.

    Before the plan is made `rate` is None, and the rule itself is asked, which may leave arguments to the config's.
    """
    target = experiment.lr_scaling.target
    rule = target["_target_"]
    changed = [*rate.changes] if rate is not None else ["betas"] if build.locate(rule) is adam_sde else []
    if changed:
        why = f"it changes {' and '.join(changed)} of the optimizer, and a LightningModule makes its own"
        raise refuse("lr_scaling", rule.rpartition(".")[2], why, "lr_scaling=sqrt")


def choose(model: nn.Module) -> Choice:
    """Call and read configure_optimizers. Raises ConfigError for what is not one optimizer and one scheduler."""
    try:
        chosen = model.configure_optimizers()  # type: ignore[operator]
    except Exception as error:  # the user's code; above all self.trainer, which there is not
        raise refused(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    schedulers: Sequence[Any] = []
    if isinstance(chosen, (list, tuple)) and len(chosen) == 2 and isinstance(chosen[0], (list, tuple)):
        chosen, schedulers = chosen
    if isinstance(chosen, (list, tuple)):
        if len(chosen) != 1:
            raise refused(
                f"{len(chosen)} optimizers: one is needed; give parts of the model groups of their own"
            )
        (chosen,) = chosen
    monitor = None
    if isinstance(chosen, dict):
        monitor, schedulers = chosen.get("monitor"), [chosen.get("lr_scheduler")]
        chosen = chosen.get("optimizer")
    if not isinstance(chosen, Optimizer) or isinstance(chosen, LBFGS):
        raise refused(f"a {type(chosen).__name__}: a torch optimizer that steps without a closure is needed")
    if len(schedulers) > 1:
        raise refused(
            f"{len(schedulers)} schedulers: one is needed; join them with SequentialLR or ChainedScheduler"
        )
    if not schedulers or schedulers[0] is None:
        return Choice(chosen)
    (scheduler,) = schedulers
    return _scheduled(chosen, scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}, monitor)


def _scheduled(optimizer: Optimizer, settings: dict[str, Any], monitor: str | None) -> Choice:
    scheduler, interval = settings.get("scheduler"), settings.get("interval", "epoch")
    for key in settings:
        if key not in SCHEDULER_KEYS:
            close = nearest(key, SCHEDULER_KEYS)
            instead = f"; type {close!r}" if close else ""
            raise refused(f"lr_scheduler has {key!r}: it takes {', '.join(SCHEDULER_KEYS)}{instead}")
    if not all(
        callable(getattr(scheduler, name, None)) for name in ("step", "state_dict", "load_state_dict")
    ):
        raise refused(f"lr_scheduler is a {type(scheduler).__name__}: a torch scheduler is needed")
    if interval not in Interval.__members__:
        raise refused(f"interval={interval!r} of the scheduler: 'epoch' or 'step' is needed")
    if settings.get("frequency", 1) != 1:
        raise refused(f"frequency={settings['frequency']} of the scheduler: 1 is needed")
    if not isinstance(scheduler, ReduceLROnPlateau):
        if settings.get("reduce_on_plateau"):
            raise refused(
                f"reduce_on_plateau of a {type(scheduler).__name__}: ReduceLROnPlateau itself is needed"
            )
        return Choice(optimizer, scheduler, Interval[interval])
    if interval == "step":
        raise refused(
            "interval='step' of ReduceLROnPlateau: it is stepped after each validation; leave it out"
        )
    follows = settings.get("monitor", monitor)
    if not isinstance(follows, str):
        raise refused('ReduceLROnPlateau without a monitor; type "monitor": "val_loss" beside it')
    return Choice(optimizer, scheduler, Interval.epoch, _monitored(follows))


def _monitored(name: str) -> str:
    """As runner names it: "val_loss" → "val/loss"."""
    for split, prefix in PREFIX.items():
        if prefix.match(name):
            return f"{split}/{prefix.sub('', name)}"
    return f"val/{name}"


def refused(message: str) -> ConfigError:
    return ConfigError(f"configure_optimizers: {message}")
