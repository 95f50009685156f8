"""Rank 0's reports, as Tune hands them to the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ray.tune import Callback

Received = Callable[[dict[str, Any]], None]


class Receiver(Callback):
    """Calls `received` on the driver. Tune pickles its callbacks with each trial's state; the function stays out."""

    def __init__(self, received: Received) -> None:
        self._received: Received | None = received

    def __getstate__(self) -> dict[str, Any]:
        return {"_received": None}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if self._received and "runner" in result:
            self._received(json.loads(result["runner"]))
