"""What the driver hands to each rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import secrets
from runner.plan import DataFacts, Plan
from runner.schema import Experiment

Received = Callable[[dict[str, Any]], None]  # called on the driver with each of rank 0's reports
Restarted = Callable[[int, str], None]  # and with the number of each restart, and why

if TYPE_CHECKING:  # a process that only passes a job on need not import torch
    from runner.ingest.row_order import Sampler
    from runner.ingest.rows import Splits
    from runner.parameters import Weights


@dataclass(frozen=True)
class Job:
    """All that a rank needs besides the data; plain and picklable."""

    experiment: Experiment
    plan: Plan
    data: DataFacts
    run_dir: Path
    run_id: str | None
    tracking_uri: str | None
    working_dir: Path
    import_roots: tuple[str, ...]
    attachments: Mapping[str, bytes]  # files that every checkpoint keeps: the fitted preprocessing
    fingerprint: str = ""  # of what the numbers depend on
    resumes: bool = False  # a run that was begun before
    best_only: bool = False  # of a sweep: plots and a model are for a job that beats the others
    to_beat: float | None = None  # their best value so far
    searched: tuple[str, ...] = ()  # keys whose values are the config's, also where a checkpoint has others


@dataclass(frozen=True)
class Memory:
    """What ranks share by Ray's shared memory: one copy a node."""

    splits: Splits
    initial: Weights | None = None  # what the model starts from
    sampler: Sampler | None = None  # the user's order of the training rows


def enter(job: Job) -> None:
    """The driver's working directory, import roots and secrets, on this rank."""
    secrets.learn_from_process([])
    secrets.learn(job)
    for root in reversed(job.import_roots):
        if root not in sys.path:
            sys.path.insert(0, root)
    if job.working_dir.is_dir():
        os.chdir(job.working_dir)
