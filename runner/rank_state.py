"""What differs between ranks and a checkpoint has to hold: their random numbers, and whatever else they give."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import torch

from runner.communicator import Communicator


def random_state() -> dict[str, Any]:
    """The generators of Python, numpy, torch and this rank's GPU, if it uses one; tensors and plain values."""
    version, words, gauss = random.getstate()
    array = np.random.get_state(legacy=False)
    state = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {**array, "state": {**array["state"], "key": torch.tensor(array["state"]["key"].tolist())}},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Let all generators go on from where `random_state` found them."""
    python, array = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    key = array["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**array, "state": {**array["state"], "key": key}})
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def gather(communicator: Communicator, state: dict[str, Any]) -> list[bytes]:
    """Every rank's `state` (nested; tensors and plain values) in rank order, as `unpacked` takes it. Collective."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return communicator.allgather_bytes(buffer.getvalue())


def unpacked(gathered: bytes) -> dict[str, Any]:
    """A rank's state. Never unpickles code."""
    state: dict[str, Any] = torch.load(io.BytesIO(gathered), weights_only=True)
    return state
