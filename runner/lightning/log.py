"""What a module's steps log: captured during the call, summed over a rank's rows, reduced over all ranks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.lightning.metric_states import compute, is_metric, path_of

METRIC = "metric"
REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda values: values.sum(dim=0),  # of value × weight, divided by the weights at the end
    "sum": lambda values: values.sum(dim=0),
    "min": lambda values: values.amin(dim=0),
    "max": lambda values: values.amax(dim=0),
}
NOTHING = {"mean": 0.0, "sum": 0.0, "min": math.inf, "max": -math.inf}  # what a rank that logged none adds
ALIASES = {"amin": "min", "amax": "max", "nanmean": "mean", "nansum": "sum"}  # by the name of a function
PREFIX = {"train": re.compile("^(train|training)[_/]"), "val": re.compile("^(val|valid|validation)[_/]")}


@dataclass(frozen=True)
class Entry:
    """One value of one self.log."""

    written: str  # the name in the module's code
    kind: str  # of REDUCTIONS, or METRIC
    value: Any  # float64 scalar, or the torchmetrics object
    weight: float  # rows


@contextmanager
def captured(model: nn.Module, rows: int) -> Iterator[list[Entry]]:
    """Inside it `model.log` and `model.log_dict` add to the list; after it the model is as before, so that it is
    copied, pickled and exported without a trace of this."""
    entries: list[Entry] = []

    def log(
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        *,
        batch_size: int | None = None,
        **accepted: Any,  # sync_dist and the like: every value is reduced over the ranks
    ) -> None:
        weight = rows if batch_size is None else batch_size
        if is_metric(value):
            entries.append(Entry(name, METRIC, value, weight))
        else:
            entries.append(Entry(name, reduction(name, reduce_fx), scalar(name, value), weight))

    def log_dict(dictionary: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        for name, value in dictionary.items():
            log(name, value, *arguments, **options)

    attributes, replaced = vars(model), {"log": log, "log_dict": log_dict}
    own = {name: attributes[name] for name in replaced if name in attributes}
    attributes.update(replaced)
    try:
        yield entries
    finally:
        for name in replaced:
            del attributes[name]
        attributes.update(own)


class Log:
    """One rank's logs of one split since the last report."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._clear()

    def add(self, entries: list[Entry]) -> None:
        for entry in entries:
            name = self.name(entry.written)
            if self._written.setdefault(name, entry.written) != entry.written:
                raise TrainingError(
                    f"self.log({entry.written!r}): {self._split}/{name} is logged as {self._written[name]!r} too; "
                    "give one of them another name"
                )
            if entry.kind == METRIC:
                self._metrics[name] = entry.value
                continue
            key = (name, entry.kind)
            value = entry.value * entry.weight if entry.kind == "mean" else entry.value
            old = self._values.get(key)
            if old is not None:  # it may have been a plain number then, and on a GPU now
                value = REDUCTIONS[entry.kind](torch.stack([old.to(value.device), value]))
            self._values[key] = value
            self._weights[key] = self._weights.get(key, 0.0) + entry.weight

    def name(self, written: str) -> str:
        """The metric's name without its split: "val_loss", "val/loss" and "loss" are "loss"."""
        return PREFIX[self._split].sub("", written)

    def reduce(self, model: nn.Module, communicator: Communicator) -> dict[str, float]:
        """{name: value} over the rows of all ranks, equal on all; starts anew. Collective.

        A rank that logged nothing, for want of rows, learns the names from the others.
        """
        mine = [[name, kind, ""] for name, kind in self._values]
        mine += [[name, METRIC, path_of(name, metric, model)] for name, metric in self._metrics.items()]
        found = union(mine, communicator)
        kinds = [(name, kind) for name, kind, _ in found if kind != METRIC]
        metrics = {name: model.get_submodule(path) for name, kind, path in found if kind == METRIC}
        names = [name for name, _, _ in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TrainingError(f"self.log: {self._split}/{twice} is logged in more than one way; choose one")
        values = self._reduced(kinds, communicator) | (compute(metrics, communicator))
        self._clear()
        return values

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Tensors and plain values; metrics by their place in the model."""
        return {
            "values": [[*key, value, self._weights[key]] for key, value in self._values.items()],
            "metrics": {name: path_of(name, metric, model) for name, metric in self._metrics.items()},
            "written": dict(self._written),
        }

    def load_state_dict(self, state: dict[str, Any], model: nn.Module) -> None:
        self._clear()
        for name, kind, value, weight in state["values"]:
            self._values[name, kind], self._weights[name, kind] = value, weight
        self._metrics.update({name: model.get_submodule(path) for name, path in state["metrics"].items()})
        self._written.update(state["written"])

    def _reduced(self, kinds: list[tuple[str, str]], communicator: Communicator) -> dict[str, float]:
        if not kinds:
            return {}
        pairs = [
            [float(self._values.get(key, NOTHING[key[1]])), self._weights.get(key, 0.0)] for key in kinds
        ]
        gathered = communicator.allgather(torch.tensor(pairs, dtype=torch.float64))  # [ranks, names, 2]
        reduced = {}
        for index, (name, kind) in enumerate(kinds):
            value = float(REDUCTIONS[kind](gathered[:, index, 0]))
            weight = float(gathered[:, index, 1].sum())
            reduced[name] = value if kind != "mean" else value / weight if weight else math.nan
        return reduced

    def _clear(self) -> None:
        self._values: dict[tuple[str, str], Tensor] = {}  # (name, kind): so far
        self._weights: dict[tuple[str, str], float] = {}
        self._metrics: dict[str, Any] = {}
        self._written: dict[str, str] = {}


def union(mine: list[list[str]], communicator: Communicator) -> list[list[str]]:
    """What any rank has, once, in the order of ranks: the same list on all. Collective."""
    text = json.dumps(mine).encode()
    longest = int(communicator.allgather(torch.tensor([len(text)])).max())
    gathered = communicator.allgather(torch.tensor(list(text.ljust(longest)), dtype=torch.uint8))
    everyone = [tuple(item) for row in gathered.tolist() for item in json.loads(bytes(row))]
    return [list(item) for item in dict.fromkeys(everyone)]


def reduction(name: str, reduce_fx: Any) -> str:
    asked = reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", str(reduce_fx))
    kind = ALIASES.get(asked, asked)
    if kind not in REDUCTIONS:
        raise TrainingError(
            f"self.log({name!r}, reduce_fx={asked}): one of {', '.join(REDUCTIONS)} is needed"
        )
    return kind


def scalar(name: str, value: Any) -> Tensor:
    """Float64 scalar; on its device, so that a GPU is not waited for."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().double().reshape(())
    if isinstance(value, (bool, int, float)):
        return torch.tensor(float(value), dtype=torch.float64)
    shape = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise TrainingError(f"self.log({name!r}): {shape} is no single number; log its mean or its parts")
