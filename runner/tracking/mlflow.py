"""Rank 0's tracker: metrics and artifacts go to MLflow from a thread of their own, in batches."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import queue
import re
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.tracking import Measured

FIRST_FLUSH_SECONDS = 10.0
UPLOAD_SECONDS = 10.0  # between two uploads at least: of checkpoints that come faster, the newest is enough
MAX_METRICS = 1000  # a batch, at most (MLflow's limit)
CHECKPOINTS, MANIFEST = "checkpoints/", "manifest.json"
_NOT_ALLOWED = re.compile(r"[^\w./ :-]")


class TrackingError(RunnerError):
    """Something could not be stored in MLflow."""


class MlflowTracker:
    """Writes to an existing run.

    `import mlflow` costs a second, several while the other ranks spin in a collective waiting for this one: it is put
    off for FIRST_FLUSH_SECONDS, so that a short training pays for it when it has ended.

    With a `history` the run is one that others wrote to, until they were killed with a part of it still in their queue
    or just stored. The store is asked which steps of which metrics it has; the others are logged, the history's first.
    """

    def __init__(
        self, uri: str, run_id: str, flush_seconds: float, history: Sequence[Measured] | None = None
    ) -> None:
        self._uri, self._run_id, self._flush_seconds = uri, run_id, flush_seconds
        self._resumed = history is not None
        self._logged: defaultdict[str, set[int]] = defaultdict(set)  # steps by key; the thread's own
        self._metrics: queue.SimpleQueue[tuple[str, float, int, int]] = queue.SimpleQueue()
        self._artifacts: dict[str, Path] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._upload_at = 0.0  # on the monotonic clock
        for measured in history or ():
            self.log_metrics(measured)
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)
        self._thread.start()

    def log_metrics(self, measured: Measured) -> None:
        for key, value in measured.metrics.items():
            self._metrics.put((clean(key), float(value), measured.milliseconds, measured.step))

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
            if self._resumed:
                self._read_logged(client)
            while not self._closing.wait(self._flush_seconds):
                self._flush(client)
                if time.monotonic() >= self._upload_at:
                    self._upload(client)
            self._flush(client)
            self._upload(client)
        except Exception as error:  # noqa: BLE001 (re-raised by close(): a thread has nobody else to tell)
            self._error = error

    def _read_logged(self, client: Any) -> None:
        for key in client.get_run(self._run_id).data.metrics:
            self._logged[key] = {metric.step for metric in client.get_metric_history(self._run_id, key)}

    def _flush(self, client: Any) -> None:
        from mlflow.entities import Metric

        waiting = []
        while not self._metrics.empty():
            key, value, milliseconds, step = self._metrics.get()
            if step not in self._logged[key]:
                self._logged[key].add(step)
                waiting.append(Metric(key, value, milliseconds, step))
        for start in range(0, len(waiting), MAX_METRICS):
            client.log_batch(self._run_id, metrics=waiting[start : start + MAX_METRICS])

    def _upload(self, client: Any) -> None:
        with self._lock:
            artifacts, self._artifacts = self._artifacts, {}
        for name, path in artifacts.items():
            try:
                self._upload_checkpoint(client, path, name)
            except FileNotFoundError:
                with (
                    self._lock
                ):  # pruned before or while it was uploaded: fine as long as a newer one is queued
                    if name not in self._artifacts:
                        raise
        if artifacts:
            self._upload_at = time.monotonic() + UPLOAD_SECONDS

    def _upload_checkpoint(self, client: Any, path: Path, name: str) -> None:
        """The manifest last: until it is there, the old one's sha256 tells that the files are not of one checkpoint."""
        for file in sorted(path.iterdir(), key=lambda file: (file.name == MANIFEST, file.name)):
            client.log_artifact(self._run_id, str(file), name)
        client.set_tag(self._run_id, f"runner.checkpoint.{name.removeprefix(CHECKPOINTS)}", path.name)


def prepare() -> None:
    """Before the first `import mlflow` of a process: quiet, and seconds where a dead server would cost minutes."""
    # It would make workers write into another run.
    os.environ.pop("MLFLOW_RUN_ID", None)
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    logging.getLogger("alembic").setLevel(logging.WARNING)


def clean(key: str) -> str:
    """A key that MLflow takes."""
    return _NOT_ALLOWED.sub("_", key)


def _public_version(package: str) -> str:
    """Without the local label: torch 2.13.0+cpu is torch==2.13.0 to whoever installs it."""
    return importlib.metadata.version(package).partition("+")[0]
