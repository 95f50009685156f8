"""Rank 0's tracker: metrics and artifacts go to MLflow from a thread of their own, in batches."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import queue
import re
import threading
import time
from pathlib import Path
from typing import Any

from runner.errors import RunnerError

FIRST_FLUSH_SECONDS = 10.0
MAX_METRICS = 1000  # a batch, at most (MLflow's limit)
_NOT_ALLOWED = re.compile(r"[^\w./ :-]")


class TrackingError(RunnerError):
    """Something could not be stored in MLflow."""


class MlflowTracker:
    """Writes to an existing run.

    `import mlflow` costs a second, several while the other ranks spin in a collective waiting for this one: it is put
    off for FIRST_FLUSH_SECONDS, so that a short training pays for it when it has ended.
    """

    def __init__(self, uri: str, run_id: str, flush_seconds: float) -> None:
        self._uri, self._run_id, self._flush_seconds = uri, run_id, flush_seconds
        self._metrics: queue.SimpleQueue[tuple[str, float, int, int]] = queue.SimpleQueue()
        self._artifacts: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        self._thread.start()

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        for key, value in metrics.items():
            self._metrics.put((clean(key), float(value), now, step))

    def log_artifact(self, path: Path, name: str) -> None:
        with self._lock:
            self._artifacts[name] = path

    def log_model(self, model: Any, example: Any) -> None:
        prepare()
        import mlflow
        import torch
        from mlflow.models import infer_signature

        model = model.eval().cpu()
        with torch.no_grad():
            outputs = model(example)
        mlflow.set_tracking_uri(self._uri)
        options = {
            "name": "model",
            "signature": infer_signature(example.numpy(), outputs.numpy()),
            "input_example": example.numpy(),
            # Given, not inferred: inference would load the model again in a subprocess, for seconds.
            "pip_requirements": [f"{name}=={_public_version(name)}" for name in ("torch", "numpy", "mlflow")],
        }
        mlflow.start_run(run_id=self._run_id, log_system_metrics=False)
        try:
            try:
                # The default, torch.export, needs no code of the user's to load.
                mlflow.pytorch.log_model(model, **options)
            except Exception as error:  # noqa: BLE001 (torch.export raises many types for what it cannot trace)
                print(f"the model cannot be exported ({type(error).__name__}); stored as a pickle instead")
                mlflow.pytorch.log_model(model, serialization_format="pickle", **options)
        finally:
            mlflow.end_run("RUNNING")  # the driver alone ends the run

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        if self._error is not None:
            raise TrackingError(
                f"MLflow at {self._uri} did not take everything: {self._error}"
            ) from self._error

    def _run(self) -> None:
        try:
            self._closing.wait(FIRST_FLUSH_SECONDS)
            prepare()
            from mlflow import MlflowClient

            client = MlflowClient(self._uri)
            while not self._closing.wait(self._flush_seconds):
                self._flush(client)
            self._flush(client)
        except Exception as error:  # noqa: BLE001 (re-raised by close(): a thread has nobody else to tell)
            self._error = error

    def _flush(self, client: Any) -> None:
        from mlflow.entities import Metric

        waiting = []
        while not self._metrics.empty():
            key, value, milliseconds, step = self._metrics.get()
            waiting.append(Metric(key, value, milliseconds, step))
        for start in range(0, len(waiting), MAX_METRICS):
            client.log_batch(self._run_id, metrics=waiting[start : start + MAX_METRICS])
        with self._lock:
            artifacts, self._artifacts = self._artifacts, {}
        for name, path in artifacts.items():
            try:
                if not path.is_dir():  # MLflow would upload nothing, and say nothing
                    raise FileNotFoundError(path)
                client.log_artifacts(self._run_id, str(path), name)
            except FileNotFoundError:
                with self._lock:  # pruned while it waited: fine as long as a newer one is queued
                    if name not in self._artifacts:
                        raise


def prepare() -> None:
    """Before the first `import mlflow` of a process: quiet, and seconds where a dead server would cost minutes."""
    # It would make workers write into another run.
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    logging.getLogger("alembic").setLevel(logging.WARNING)


def clean(key: str) -> str:
    """A key that MLflow takes."""
    return _NOT_ALLOWED.sub("_", key)


def _public_version(package: str) -> str:
    """Without the local label: torch 2.13.0+cpu is torch==2.13.0 to whoever installs it."""
    return importlib.metadata.version(package).partition("+")[0]
