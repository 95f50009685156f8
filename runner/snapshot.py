"""What one checkpoint will hold, apart from the training that goes on: a copy of its own, on the CPU."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runner.errors import TrainingError

# What torch loads again with weights_only=True: these types exactly, no classes derived from them.
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
MAPPINGS = (dict, OrderedDict, Counter)
SCALARS: dict[type, Callable[[Any], Any]] = {int: int, float: float, complex: complex, str: str.__str__}


@dataclass(frozen=True)
class Snapshot:
    """The arguments of `checkpoint.commit`."""

    name: str
    weights: Mapping[str, Tensor]
    state: dict[str, Any]
    facts: dict[str, Any]
    attachments: Mapping[str, bytes]


def copy_of(snapshot: Snapshot) -> Snapshot:
    """A snapshot that the training's next step does not change: every tensor is cloned, once.

    Raises TrainingError for a value that would not load again; better now than when it is needed.
    """
    return replace(
        snapshot,
        weights=copied(dict(snapshot.weights), "weights"),
        state=copied(snapshot.state, "state"),
        facts=copied(snapshot.facts, "facts"),
    )


def copied(value: Any, key: str) -> Any:
    """`value` with all its containers and tensors made anew; `key` says where it is from in an error."""
    kind = type(value)
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if kind in PLAIN:
        return value
    if isinstance(value, dict):
        items = {name: copied(item, f"{key}.{name}") for name, item in value.items()}
        return items if kind not in MAPPINGS else kind(items)
    if isinstance(value, (list, tuple)):
        values = [copied(item, f"{key}.{index}") for index, item in enumerate(value)]
        return values if isinstance(value, list) else tuple(values)
    if isinstance(value, set):
        return set(copied(list(value), key))
    if isinstance(value, np.generic) and type(value.item()) in PLAIN:
        return value.item()
    for plain, converted in SCALARS.items():  # a subclass, such as an enum's
        if isinstance(value, plain):
            return converted(value)
    raise TrainingError(
        f"{key}: a {kind.__name__} cannot be kept, a checkpoint holds tensors and plain values"
    )
