"""The torchmetrics of a module: computed over the rows of all ranks, put back after a batch that does not count, and
kept in a checkpoint."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.metrics import NO_NEWS, numbers, synchronise, unjoinable

Snapshot = list[tuple[Any, int, dict[str, Any]]]  # (metric, update count, state)


def is_metric(value: object) -> bool:
    """A torchmetrics.Metric, without importing it; not a MetricCollection, whose metrics are known one by one."""
    return isinstance(value, nn.Module) and hasattr(type(value), "update_count")


def path_of(name: str, metric: nn.Module, model: nn.Module) -> str:
    """Where in the model a metric is that was logged as `name`: the other ranks find theirs by it."""
    path = next((path for path, module in model.named_modules() if module is metric), None)
    if path is None:
        raise TrainingError(
            f"self.log({name!r}): the {type(metric).__name__} is no attribute of the module; set it in __init__"
        )
    return path


def compute(metrics: Mapping[str, Any], communicator: Communicator) -> dict[str, float]:
    """{name: value} of the module's own metrics over the rows of all ranks, rank 0's values on each; resets them.

    Collective: the same names on all ranks. Several numbers become name_0, … or name_key; without a row it is NaN.
    """
    for message in NO_NEWS:
        warnings.filterwarnings("ignore", message, UserWarning)
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        _refuse_unjoinable(name, metric)
        updated = communicator.allgather(torch.tensor(metric.update_count))
        ranks = updated.nonzero().flatten().tolist()
        with _synchronised(metric, communicator, ranks):
            found |= numbers(name, metric.compute() if ranks else math.nan)
        metric.reset()
    return communicator.broadcast(found) if metrics else {}


def states(model: nn.Module) -> Snapshot:
    """Copies of the states of the model's metrics."""
    metrics: list[Any] = [module for module in model.modules() if is_metric(module)]
    return [
        (metric, metric.update_count, {name: _copy(state) for name, state in metric.metric_state.items()})
        for metric in metrics
    ]


def restore(snapshot: Snapshot) -> None:
    for metric, count, state in snapshot:
        for name, value in state.items():
            setattr(metric, name, value)
        metric._update_count, metric._computed = count, None


def state_dict(model: nn.Module) -> dict[str, Any]:
    """The states of the model's metrics by path, as a checkpoint holds them: tensors and plain values."""
    paths = (path for path, module in model.named_modules() if is_metric(module))
    return {
        path: {"updates": count, "states": {name: _detached(value) for name, value in state.items()}}
        for path, (_, count, state) in zip(paths, states(model), strict=True)
    }


def load_state_dict(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Raises TrainingError when the model has other metrics."""
    metrics: dict[str, Any] = {path: module for path, module in model.named_modules() if is_metric(module)}
    if other := sorted(metrics.keys() ^ saved.keys()):
        raise TrainingError(
            f"model: {', '.join(other)}: only one of the model and the checkpoint has this metric"
        )
    restore(
        [
            (
                metrics[path],
                entry["updates"],
                {name: _on(metrics[path].device, value) for name, value in entry["states"].items()},
            )
            for path, entry in saved.items()
        ]
    )


@contextmanager
def _synchronised(metric: Any, communicator: Communicator, ranks: list[int]) -> Iterator[None]:
    """Only inside it `metric.compute()` is collective: a module may call it itself, and its class must pickle."""
    parts = [part for part in metric.modules() if is_metric(part)]
    before = [(part.dist_sync_fn, part.distributed_available_fn) for part in parts]
    synchronise(metric, communicator, ranks)
    try:
        yield
    finally:
        for part, (sync, available) in zip(parts, before, strict=True):
            part.dist_sync_fn, part.distributed_available_fn = sync, available


def _refuse_unjoinable(name: str, metric: Any) -> None:
    for state in unjoinable(metric):
        raise TrainingError(
            f"self.log({name!r}): {type(metric).__name__} keeps a list {state} without dist_reduce_fx, which ranks "
            "cannot join"
        )


def _detached(state: Any) -> Any:
    if isinstance(state, list):
        return [_detached(value) for value in state]
    return state.detach() if isinstance(state, Tensor) else state


def _on(device: torch.device, state: Any) -> Any:
    if isinstance(state, list):
        return [_on(device, value) for value in state]
    return state.to(device) if isinstance(state, Tensor) else state


def _copy(state: Any) -> Any:
    return state.clone() if isinstance(state, Tensor) else list(state)
