"""Jobs for live workers: what is tested is the training, not its launch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import __main__ as door
from runner import config
from runner.executors.live_workers import LiveWorkers
from runner.prepare import Prepared, prepare
from runner.verbs.proof_jobs import job_of, memory_of


def train(workers: LiveWorkers, prepared: Prepared, run_dir: Path) -> list[dict[str, Any]]:
    """Rank 0's reports of one training."""
    return workers.train(job_of(prepared, run_dir, ()), memory_of(prepared))


def measured(reports: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The metrics of all epochs and validations."""
    return [metrics for report in reports for metrics in report.get("history", [])]


def prepared(overrides: list[str], run_dir: Path, config_dir: Path | None = None) -> Prepared:
    """What `python -m runner <overrides>` would launch."""
    config.register_schema()
    search = [f"--config-dir={config_dir}"] if config_dir else []
    return prepare(replace(door.request_of([*overrides, *search], ()), run_dir=run_dir))
