"""What Tune tells the driver while it trains: rank 0's reports, and restarts after a lost process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Callback, Stopper

Received = Callable[[dict[str, Any]], None]


class Receiver(Callback):
    """Calls `received` with each report, and `recovers`, with Ray's account of the failure, when Tune is about to restart
    the workers.

    Tune pickles its callbacks with each trial's state; the functions stay out.
    """

    def __init__(self, received: Received, recovers: Callable[[str], None]) -> None:
        self._received: Received | None = received
        self._recovers: Callable[[str], None] | None = recovers

    def __getstate__(self) -> dict[str, Any]:
        return {"_received": None, "_recovers": None}

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if self._received and "runner" in result:
            self._received(json.loads(result["runner"]))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self._recovers:
            self._recovers(account(trial))


def account(trial: Any) -> str:
    """Ray's, of a trial's last failure."""
    accounts = Path(trial.error_file).read_text() if trial.error_file else ""
    return accounts.rpartition("Failure # ")[2]


class StopWhen(Stopper):
    """Ends the training, without the restart that FailureConfig allows, as soon as `ends` says so."""

    def __init__(self, ends: Callable[[], bool]) -> None:
        self._ends: Callable[[], bool] | None = ends

    def __getstate__(self) -> dict[str, Any]:
        return {"_ends": None}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return bool(self._ends and self._ends())
