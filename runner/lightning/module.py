"""What a LightningModule is, which of its methods would silently not run, and its own part of a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from runner.errors import ConfigError, TrainingError, own_line, refuse
from runner.lightning import optimizers

LIBRARIES = {"builtins", "lightning", "lightning_fabric", "pytorch_lightning", "torch"}

# Methods that only Lightning's Trainer calls during a fit, and what to do instead.
DATA = "data come from the config group dataset: delete it and type dataset=…"
TRANSFER = "batches arrive on the model's device: prepare them in the dataset or in the step"
LOOP = "runner takes the step: backward, average over the ranks, clip, step, schedule"
CLIP = "type trainer.clip_norm=… or trainer.clip_value=…"
LAYERS = "build the layers in __init__"
CALLBACKS = "type trainer.patience=… to stop early; checkpoint.monitor=… chooses the best checkpoint"
HOOK = "hooks are not called: do it in __init__, training_step or validation_step"
REMEDIES = {
    DATA: "prepare_data setup teardown train_dataloader val_dataloader",
    TRANSFER: "transfer_batch_to_device on_before_batch_transfer on_after_batch_transfer",
    LOOP: "backward manual_backward optimizer_step optimizer_zero_grad lr_scheduler_step",
    CLIP: "configure_gradient_clipping clip_gradients",
    LAYERS: "configure_model configure_sharded_model",
    CALLBACKS: "configure_callbacks",
    HOOK: "on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end "
    "on_train_batch_start on_train_batch_end on_validation_start on_validation_end on_validation_epoch_start "
    "on_validation_epoch_end on_validation_batch_start on_validation_batch_end on_validation_model_eval "
    "on_validation_model_train on_validation_model_zero_grad on_before_backward on_after_backward "
    "on_before_optimizer_step on_before_zero_grad "
    "training_step_end training_epoch_end validation_step_end validation_epoch_end",  # Lightning 1
}
UNCALLED = {name: remedy for remedy, names in REMEDIES.items() for name in names.split()}

# What a checkpoint gives back without unpickling code.
KEPT = {Tensor, nn.Parameter, type(None), bool, int, float, complex, str, bytes}


def is_module(model: object) -> bool:
    """Whether a model, or its class, has a LightningModule's training_step and configure_optimizers."""
    return all(callable(getattr(model, name, None)) for name in ("training_step", "configure_optimizers"))


def defines(model: nn.Module, name: str) -> bool:
    """Whether the user's own code defines the method, not Lightning or torch."""
    if name in vars(model):
        return callable(vars(model)[name])
    owner = next((cls for cls in type(model).__mro__ if name in vars(cls)), None)
    if owner is None or not callable(getattr(owner, name)):
        return False
    return owner.__module__.partition(".")[0] not in LIBRARIES


def arity(step: Callable[..., Any]) -> int:
    """How many of (batch, batch_idx, dataloader_idx) a step takes. Raises ConfigError, as for `dataloader_iter`."""
    parameters = list(inspect.signature(step).parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return max(2, len(places))
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if not places or len(needed) > 3 or set(needed) - set(places) or places[0].name == "dataloader_iter":
        raise ConfigError(
            f"{getattr(step, '__qualname__', step)}{inspect.signature(step)}: a step is called with (batch, batch_idx)"
        )
    return max(min(2, len(places)), len(needed))


def check(model: nn.Module, monitor: str | None = None) -> None:
    """Raise ConfigError, by name, for what runner cannot honour. `monitor` is checkpoint.monitor, which
    ReduceLROnPlateau follows."""

    def refused(allowed: str, instead: str | None = None) -> ConfigError:
        return refuse("model", f"{type(model).__module__}.{type(model).__qualname__}", allowed, instead)

    for name in ("training_step", "configure_optimizers"):
        if not defines(model, name):
            raise refused(f"defines no {name}")
    if not getattr(model, "automatic_optimization", True):
        raise refused(
            "automatic_optimization = False: runner calls backward and the optimizer itself; return the loss from "
            "training_step instead"
        )
    uncalled: dict[str, list[str]] = {}  # remedy: names
    for name, remedy in UNCALLED.items():
        if defines(model, name):
            uncalled.setdefault(remedy, []).append(name)
    if uncalled:
        listed = "; ".join(
            f"{', '.join(names)} would not run ({remedy})" for remedy, names in uncalled.items()
        )
        raise refused(listed)
    for name in ("training_step", "validation_step"):
        if defines(model, name):
            arity(getattr(model, name))
    choice = optimizers.choose(model)
    if monitor is not None and choice.monitor not in (None, monitor):
        raise refuse(
            "checkpoint.monitor",
            monitor,
            f"the module's ReduceLROnPlateau follows {choice.monitor}, and there is one monitored metric",
            f"checkpoint.monitor={choice.monitor}",
        )


def saved(model: nn.Module) -> dict[str, Any]:
    """What the module's on_save_checkpoint puts into a checkpoint: tensors and plain values. Raises TrainingError."""
    checkpoint: dict[str, Any] = {}
    _call_hook(model, "on_save_checkpoint", checkpoint)
    for place, value in _leaves("checkpoint", checkpoint):
        if type(value) not in KEPT:
            raise TrainingError(
                f"model: on_save_checkpoint put a {type(value).__name__} into {place}: only tensors, numbers, strings, "
                "lists, tuples and dicts are kept"
            )
    return checkpoint


def restored(model: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Hand the module what `saved` gave; before its weights are loaded, as Lightning does."""
    _call_hook(model, "on_load_checkpoint", checkpoint)


def _call_hook(model: nn.Module, name: str, checkpoint: dict[str, Any]) -> None:
    if not is_module(model) or not defines(model, name):
        return
    try:
        getattr(model, name)(checkpoint)
    except Exception as error:  # the user's code may raise anything
        message = f"{type(error).__name__}: {' '.join(str(error).split())} ({own_line(error)})"
        raise TrainingError(f"model: {name}: {message}") from error


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(where, value) of all that is no list, tuple or dict; keys of dicts too."""
    if type(value) is dict:
        for key, item in value.items():
            yield f"the keys of {place}", key
            yield from _leaves(f"{place}[{key!r}]", item)
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _leaves(f"{place}[{index}]", item)
    else:
        yield place, value
