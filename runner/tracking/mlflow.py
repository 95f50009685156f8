"""Rank 0's tracker: everything is in a spool at once, and goes to MLflow from a thread of its own, in batches."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.tracking import Measured
from runner.tracking.delivery import Delivery
from runner.tracking.spool import FOLDER, MODEL, RANK_0, RANK_0_FILES, Address, Spool, within
from runner.tracking.store import prepare

FIRST_FLUSH_SECONDS = 10.0
_NOT_ALLOWED = re.compile(r"[^\w./ :-]")


class TrackingError(RunnerError):
    """Something that MLflow does not take."""


class MlflowTracker:
    """Writes to an existing run, or to one that the driver creates later; `folder` is that of the run.

    `import mlflow` costs a second, several while the other ranks spin in a collective waiting for this one: it is put
    off for FIRST_FLUSH_SECONDS, so that a short training pays for it when it has ended.

    With a `history` the run is one that others wrote to, until they were killed with a part of it still in their spool
    or just stored. The store is asked which steps of which metrics it has; the others are logged, those of the spool
    first, the history's next.
    """

    def __init__(
        self,
        folder: Path,
        uri: str,
        run_id: str | None,
        flush_seconds: float,
        history: Sequence[Measured] | None = None,
    ) -> None:
        self._folder, self._uri = folder, uri
        self._metrics, self._files = Spool(folder, RANK_0), Spool(folder, RANK_0_FILES)
        address = Address.read(folder) or Address(uri)
        address = Address(uri, run_id or address.run_id, address.was_put_off)
        spools = (self._metrics, self._files)
        self._delivery = Delivery(folder, address, spools, asks=history is not None, say=_say)
        for measured in history or ():
            self.log_metrics(measured)
        self._delivery.start(flush_seconds, FIRST_FLUSH_SECONDS)

    def log_metrics(self, measured: Measured) -> None:
        metrics = {clean(key): float(value) for key, value in measured.metrics.items()}
        self._metrics.append(
            {
                "kind": "metrics",
                "step": measured.step,
                "milliseconds": measured.milliseconds,
                "metrics": metrics,
            }
        )

    def log_artifact(self, path: Path, name: str) -> None:
        self._files.append({"kind": "checkpoint", "path": within(self._folder, path), "name": name})

    def log_model(self, model: Any, example: Any) -> None:
        mark = f"{MODEL}{time.time_ns()}"
        path = self._folder / FOLDER / mark
        save_model(model, example, path)
        self._files.append({"kind": "model", "path": within(self._folder, path), "mark": mark})

    def close(self) -> None:
        outcome = self._delivery.close()
        if outcome.refused:
            raise TrackingError(f"MLflow at {self._uri} did not take everything: {outcome.refused[0]}")

    def leave(self) -> None:
        self._delivery.leave()


def preload() -> None:
    """Import what `save_model` needs."""
    prepare()
    import mlflow.pytorch  # noqa: F401
    import torch._dynamo
    import torch.export._trace  # noqa: F401


def save_model(model: Any, example: Any, path: Path) -> None:
    """As a folder that MLflow loads."""
    prepare()
    import mlflow
    import torch
    from mlflow.models import infer_signature

    model = model.eval().cpu()
    with torch.no_grad():
        outputs = model(example)
    options = {
        "signature": infer_signature(example.numpy(), outputs.numpy()),
        "input_example": example.numpy(),
        # Given, not inferred: inference would load the model again in a subprocess, for seconds.
        "pip_requirements": [f"{name}=={_public_version(name)}" for name in ("torch", "numpy", "mlflow")],
    }
    try:
        # torch.export needs no code of the user's to load.
        mlflow.pytorch.save_model(model, path, serialization_format="pt2", **options)
    except Exception as error:  # noqa: BLE001 (torch.export raises many types for what it cannot trace)
        print(f"the model cannot be exported ({type(error).__name__}); stored as a pickle instead")
        shutil.rmtree(path, ignore_errors=True)
        mlflow.pytorch.save_model(model, path, serialization_format="pickle", **options)


def clean(key: str) -> str:
    """A key that MLflow takes."""
    return _NOT_ALLOWED.sub("_", key)


def _say(line: str) -> None:
    print(line, flush=True)


def _public_version(package: str) -> str:
    """Without the local label: torch 2.13.0+cpu is torch==2.13.0 to whoever installs it."""
    return importlib.metadata.version(package).partition("+")[0]
