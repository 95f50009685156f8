"""Metrics of torchmetrics, computed over the rows of all ranks."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from runner import build
from runner.communicator import Communicator
from runner.errors import ConfigError, TrainingError, refuse
from runner.plan import DataFacts
from runner.schema import UNCOUNTED, Task

if TYPE_CHECKING:  # its import takes seconds, and most runs need none
    from torchmetrics import Metric

Columns = tuple[Tensor, Tensor]  # outputs [rows, …], targets [rows] or [rows, …]
NO_NEWS = ("Metric `.*` will save all targets", "The ``compute`` method of metric .* was called before")


class Metrics:
    """Named torchmetrics metrics; a collection without any costs nothing and imports nothing."""

    def __init__(self, named: Mapping[str, Metric], task: Task) -> None:
        self._named, self._task = dict(named), task
        self._rows = 0  # since the last `compute`, on this rank
        for metric in self._named.values():
            start(metric)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Count rows of this rank."""
        if not self._named:
            return
        outputs, targets = prepared(outputs, targets, self._task)
        if len(targets) == 0:
            return
        self._rows += len(targets)
        for name, metric in self._named.items():
            if metric.device != outputs.device:
                metric.to(outputs.device)
            try:
                metric.update(outputs, targets)
            except Exception as error:
                shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
                raise TrainingError(f"metrics.{name}: {shapes}: {_line(error)}") from error

    def compute(self, communicator: Communicator) -> dict[str, float]:
        """{name: value} over the rows of all ranks, rank 0's values on each; starts anew. Collective.

        A metric that gives several numbers becomes name_0, name_1, … or name_key. Without any row it is NaN.
        """
        if not self._named:
            return {}
        ranks = communicator.allgather(torch.tensor(self._rows)).nonzero().flatten().tolist()
        found: dict[str, float] = {}
        for name, metric in self._named.items():
            synchronise(metric, communicator, ranks)
            found |= numbers(name, _computed(name, metric) if ranks else math.nan)
            start(metric)
        self._rows = 0
        # The ranks decide by these numbers when to stop; a metric may draw at random.
        return communicator.broadcast(found)


def build_metrics(nodes: Mapping[str, Any], data: DataFacts, task: Task) -> Metrics:
    """The metrics of the config, {name: node}. Raises ConfigError."""
    if not nodes:
        return Metrics({}, task)
    from torchmetrics import Metric

    for message in NO_NEWS:
        warnings.filterwarnings("ignore", message, UserWarning)
    named: dict[str, Metric] = {}
    for name, node in nodes.items():
        key = f"metrics.{name}"
        target = node.get("_target_") if isinstance(node, Mapping) else None
        if target is None:
            raise refuse(
                key,
                node,
                "a _target_ is needed",
                f"{key}._target_=torchmetrics.classification.MulticlassAUROC",
            )
        try:
            metric = build.build(node, facts=data.for_model())
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"{key}={target}: {_line(error)}") from error
        if not isinstance(metric, Metric):
            raise refuse(
                f"{key}._target_", target, f"gives a {type(metric).__name__}, not a torchmetrics.Metric"
            )
        if task is Task.classification and type(metric).__name__.startswith("Binary"):
            instead = f"{key}._target_={target.replace('.Binary', '.Multiclass')}"
            raise refuse(f"{key}._target_", target, "a classification gives a probability a class", instead)
        for state in unjoinable(metric):
            raise refuse(
                f"{key}._target_", target, f"its list {state} has no dist_reduce_fx: ranks cannot join it"
            )
        named[name] = metric
    return Metrics(named, task)


def prepared(outputs: Tensor, targets: Tensor, task: Task) -> Columns:
    """As torchmetrics takes them: probabilities and whole-numbered labels, a row a token, a single target as [rows].

    It would take logits for probabilities where all lie in [0, 1].
    """
    if task is Task.classification:
        return outputs.softmax(dim=1), targets
    if task is Task.multilabel:
        return outputs.sigmoid(), targets.long()
    if task is Task.language_modeling:
        counted = targets != UNCOUNTED
        return outputs[counted].softmax(dim=1), targets[counted]
    if targets.shape[1:] == (1,):
        outputs, targets = outputs.squeeze(1), targets.squeeze(1)
    return outputs.double(), targets.double()  # squares are summed within a batch, too


def start(metric: Metric) -> None:
    """Forget all rows. Sums are then kept in float64: in float32 they would depend on how the rows are split."""
    metric.reset()
    for part in _parts(metric):
        for state, value in part.metric_state.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(part, state, value.double())


def synchronise(metric: Metric, communicator: Communicator, ranks: list[int]) -> None:
    """Let `metric.compute()` join the states of `ranks`, those that saw rows, and be collective over all ranks.

    Torchmetrics asks torch.distributed otherwise, which is not there: each rank would compute its own rows' value.
    """

    def gather(state: Tensor, group: Any = None) -> list[Tensor]:
        return [gathered.to(state.device) for gathered in _gathered(state, communicator, ranks)]

    for part in _parts(metric):
        part.dist_sync_fn = gather
        part.distributed_available_fn = lambda: communicator.size > 1


def numbers(name: str, value: Any) -> dict[str, float]:
    """A metric's value as named floats: tensors, sequences and mappings are flattened, name_0, name_1 or name_key."""
    return dict(_flat(name, value))


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Tensor) and value.ndim:
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}_{key}", item)
    else:
        yield name, float(value)


def _gathered(state: Tensor, communicator: Communicator, ranks: list[int]) -> list[Tensor]:
    """The state of each of `ranks`, on the CPU. As bytes: a rank without rows knows neither the shape nor the type."""
    mine = torch.frombuffer(bytearray(pickle.dumps(state.detach().cpu().clone())), dtype=torch.uint8)
    sizes = communicator.allgather(torch.tensor(len(mine))).tolist()
    gathered = communicator.allgather(functional.pad(mine, (0, max(sizes) - len(mine))))
    return [pickle.loads(gathered[rank, : sizes[rank]].numpy().tobytes()) for rank in ranks]


def _parts(metric: Metric) -> Iterator[Metric]:
    """The metric, and those it wraps."""
    from torchmetrics import Metric

    return (part for part in metric.modules() if isinstance(part, Metric))


def unjoinable(metric: Metric) -> Iterator[str]:
    """List states that torchmetrics gathers item by item: ranks with unequally many would wait for each other."""
    for part in _parts(metric):
        for state, value in part.metric_state.items():
            if isinstance(value, list) and part._reductions[state] is None:
                yield state


def _computed(name: str, metric: Metric) -> Any:
    try:
        return metric.compute()
    except Exception as error:
        raise TrainingError(f"metrics.{name}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
