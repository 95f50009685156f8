"""What is trained, and how: model, optimizer, schedule and objective of one rank, equal on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from runner import build, lightning, parameters
from runner.adascale import AdaScale, Gain
from runner.communicator import Communicator
from runner.errors import ConfigError, own_line, refuse
from runner.objective import Objective, objective
from runner.parameters import Weights, values
from runner.plan import DataFacts, Plan
from runner.schedule import KEPT, Schedule
from runner.schema import Experiment, Interval, OnNonfinite, Precision

AUTOCAST = {Precision.bf16: torch.bfloat16, Precision.fp16: torch.float16}


@dataclass(frozen=True)
class Learner:
    """The loop calls its methods in the order of a step. What is switched off does nothing."""

    model: nn.Module
    optimizer: Optimizer
    schedule: Schedule
    objective: Objective
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: torch.amp.GradScaler = field(default_factory=lambda: torch.amp.GradScaler("cpu", enabled=False))
    average: AveragedModel | None = None  # moving average of the weights
    clip_norm: float | None = None
    clip_value: float | None = None
    log_norms: bool = False
    on_nonfinite: OnNonfinite = OnNonfinite.ignore
    adascale: Gain = field(default_factory=Gain)
    scaled_options: dict[str, Any] = field(default_factory=dict)  # of the optimizer, that the LR rule changed
    own_options: tuple[str, ...] = ()  # of the optimizer, that a checkpoint does not change

    @property
    def checks(self) -> bool:
        """Whether each step's loss and gradient are looked at."""
        return self.on_nonfinite is not OnNonfinite.ignore

    def train_mode(self) -> None:
        parameters.train_mode(self.model)

    def clip(self) -> Tensor | None:
        """Clip the averaged gradient; returns its L2 norm before that, where one is asked for."""
        trained = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = None
        if self.clip_norm is not None:
            norm = clip_grad_norm_(trained, self.clip_norm)
        elif self.log_norms or self.checks or self.adascale.is_on:
            norm = get_total_norm(
                [values(parameter.grad) for parameter in trained if parameter.grad is not None]
            )
        if self.clip_value is not None:
            clip_grad_value_(trained, self.clip_value)
        return norm

    def kept_buffers(self) -> dict[str, Tensor]:
        """A copy of statistics such as batch norm's, where a step may be left out; they have its batch in them by then."""
        if self.on_nonfinite is not OnNonfinite.skip:
            return {}
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def restore_buffers(self, kept: dict[str, Tensor]) -> None:
        for name, buffer in self.model.named_buffers():
            if name in kept:
                buffer.copy_(kept[name])

    def update_average(self) -> None:
        if self.average is not None:
            self.average.update_parameters(self.model)

    def evaluated_model(self) -> nn.Module:
        """The weights that are evaluated and kept, in evaluation mode."""
        model: nn.Module = self.model if self.average is None else self.average.module
        return model.eval()

    def parameter_norm(self) -> float:
        return float(get_total_norm([parameter.detach() for parameter in self.model.parameters()]))

    def weights(self) -> dict[str, Tensor]:
        """Of the evaluated model; whether it trains or evaluates stays as it is."""
        model: nn.Module = self.model if self.average is None else self.average.module
        return model.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """All that resumes it besides `weights`, equal on all ranks; tensors and plain values."""
        state: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "adascale": self.adascale.state_dict(),
            "scaled_options": self.scaled_options,
            "scaler": self.scaler.state_dict(),
            "module": lightning.saved(self.model),
        }
        if self.average is not None:
            state |= {"model": self.model.state_dict(), "averaged": int(self.average.n_averaged)}
        return state

    def rank_state(self) -> dict[str, Any]:
        """What differs between ranks: statistics of batch norms, values logged since the last report."""
        parameters = dict(self.model.named_parameters())
        buffers = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        return {"buffers": buffers, "objective": self.objective.state_dict()}

    def owning(self, options: Iterable[str]) -> Learner:
        """The same, whose options of these names are never a checkpoint's. Raises ConfigError for one that the optimizer does
        not read again in each step."""
        for name in options:
            if not all(name in group for group in self.optimizer.param_groups):
                raise refuse(f"optimizer.{name}", "…", "the optimizer does not keep it, so it cannot change")
        return replace(self, own_options=tuple(options))

    def resume(self, weights: Weights, state: dict[str, Any], steps: float) -> None:
        """Go on from `weights()` and `state_dict()`; `steps` are those of the schedule. Raises RuntimeError where they are
        another model's."""
        lightning.restored(self.model, state["module"])  # before the weights, as Lightning does
        self.model.load_state_dict(weights if self.average is None else state["model"])
        if self.average is not None:
            self.average.module.load_state_dict(weights)
            self.average.n_averaged.fill_(state["averaged"])
        own = [{name: group[name] for name in self.own_options} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, options in zip(self.optimizer.param_groups, own, strict=True):
            group.update(options)
        if state["scaled_options"] != self.scaled_options:  # the rule's for another number of workers
            for group in self.optimizer.param_groups:
                group.update(self.scaled_options)
        self.schedule.resume(state["schedule"], steps)
        self.adascale.load_state_dict(state["adascale"])
        self.scaler.load_state_dict(state["scaler"])

    def resume_rank(self, state: dict[str, Any]) -> None:
        """Go on from `rank_state()`."""
        models = [self.model] if self.average is None else [self.model, self.average.module]
        for model in models:
            model.load_state_dict(state["buffers"], strict=False)
        self.objective.load_state_dict(state["objective"])


def build_learner(
    experiment: Experiment,
    plan: Plan,
    data: DataFacts,
    communicator: Communicator,
    on: torch.device,
    initial: Weights | None = None,
) -> Learner:
    """Model, optimizer and schedule with the scaled LR; weights and optimizer state are rank 0's on all ranks."""
    trainer, rate = experiment.trainer, plan.learning_rate
    model = build_model(experiment, plan, data, on, initial)
    communicator.broadcast_model(model)
    torch.manual_seed(experiment.seed + 1 + communicator.rank)  # dropout differs between ranks from here on
    if lightning.is_module(model):
        learns: Objective = lightning.LightningObjective(model)
        optimizer, schedule_with = lightning.configure(model, rate.multiplier)
    else:
        learns = objective(experiment, data)
        optimizer = parameters.optimizer(model, rate.configured(experiment.optimizer), rate.multiplier)
        schedule_with = partial(_scheduler, experiment, plan)
    adascale = Gain()
    if rate.is_adaptive:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adascale = AdaScale(trained, plan.num_workers, plan.accumulation_steps, plan.batch_size)
    optimizer = communicator.distribute(optimizer, model, plan.accumulation_steps)
    schedule = _schedule(plan, optimizer, *schedule_with(optimizer))
    average = None
    if trainer.ema_decay is not None:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(trainer.ema_decay))
    if trainer.compile:
        model.compile()  # in place: names of parameters stay as they are
    half = AUTOCAST.get(trainer.precision)
    if half is torch.float16 or trainer.on_nonfinite is OnNonfinite.skip:
        # Steps whose gradients overflow are left out, the very first ones among them; the LR counts them.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
    return Learner(
        model,
        optimizer,
        schedule,
        learns,
        autocast=partial(torch.autocast, on.type, half) if half else nullcontext,
        scaler=torch.amp.GradScaler(on.type, enabled=half is torch.float16),
        average=average,
        clip_norm=trainer.clip_norm,
        clip_value=trainer.clip_value,
        log_norms=trainer.log_norms,
        on_nonfinite=trainer.on_nonfinite,
        adascale=adascale,
        scaled_options=rate.scaled_options(),
    )


def change_lr(learner: Learner, experiment: Experiment, plan: Plan, steps: float) -> None:
    """Take the learning rate of `plan` from the next step on: the schedule stands, after so many steps, where one that always had
    it would stand. `experiment` and `plan` differ from those of the learner in nothing else. Not for a LightningModule."""
    rate, optimizer = plan.learning_rate, learner.optimizer
    firsts = parameters.groups(learner.model, rate.configured(experiment.optimizer), rate.multiplier)
    before = learner.schedule.state_dict()
    for group, first in zip(optimizer.param_groups, firsts, strict=True):
        for key in KEPT:
            group.pop(key, None)
        group["lr"] = first["lr"]
    schedule = _schedule(plan, optimizer, *_scheduler(experiment, plan, optimizer))
    schedule.resume(before, steps)
    vars(learner.schedule).update(vars(schedule))  # the loop has the learner


def build_model(
    experiment: Experiment, plan: Plan, data: DataFacts, on: torch.device, initial: Weights | None
) -> nn.Module:
    """The model on its device, with its first weights and frozen parameters. Raises ConfigError."""
    model = construct(experiment, plan, data)
    batch_norm = next(
        (name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)), None
    )
    if batch_norm is not None:
        raise ConfigError(
            f"model={experiment.model.target['_target_']}: {batch_norm or 'it'} is a SyncBatchNorm, which needs torch.distributed; "
            "use a norm without batch statistics (GroupNorm, LayerNorm)"
        )
    model = model.to(on, torch.float64 if experiment.trainer.precision is Precision.float64 else None)
    narrow = next((name for name, weight in model.named_parameters() if weight.dtype is torch.bfloat16), None)
    if narrow is not None and on.type == "cpu":
        raise ConfigError(
            f"model={experiment.model.target['_target_']}: {narrow} is bfloat16, which Gloo cannot average on CPUs; "
            "type trainer.precision=bf16, which computes in bfloat16 and keeps float32 weights"
        )
    if initial is not None:
        parameters.initialise(model, experiment.model, initial)
    parameters.freeze(model, experiment.model.freeze)
    return model


def construct(experiment: Experiment, plan: Plan, data: DataFacts) -> nn.Module:
    """The model of the config, as its constructor makes it. Raises ConfigError."""
    model = _made("model", experiment.model.target, facts=plan.for_model(data))
    if not isinstance(model, nn.Module):
        what = f"gives a {type(model).__name__}, a torch.nn.Module is needed"
        raise refuse("model._target_", experiment.model.target["_target_"], what)
    return model


def _schedule(plan: Plan, optimizer: Optimizer, scheduler: LRScheduler, interval: Interval) -> Schedule:
    return Schedule(
        optimizer,
        scheduler,
        interval,
        plan.warmup_steps,
        plan.learning_rate.warmup_start,
        plan.schedule_steps_per_epoch,
        total_steps=plan.total_steps + plan.schedule_offset,
    )


def _scheduler(experiment: Experiment, plan: Plan, optimizer: Optimizer) -> tuple[LRScheduler, Interval]:
    settings = experiment.scheduler
    peaks = [group["lr"] for group in optimizer.param_groups]
    facts = {
        **plan.for_scheduler(settings),
        "max_lr": peaks,
        "mode": "max" if plan.goal.maximise else "min",
    }
    return _made("scheduler", settings.target, optimizer, facts=facts), settings.interval


def _made(group: str, node: dict[str, Any], *positional: Any, facts: dict[str, Any]) -> Any:
    """What a `_target_` gives; what its constructor raises is one line with the place that raised it."""
    try:
        return build.build(node, *positional, facts=facts)
    except ConfigError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())} ({own_line(error)})"
        raise ConfigError(f"{group}={node['_target_']}: {message}") from error
