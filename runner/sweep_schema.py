"""The part of schema.py that is about the jobs of a multirun: where they come from, and how they run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Method(Enum):
    grid = "grid"  # every combination of the values
    random = "random"
    tpe = "tpe"  # Bayesian: learns from the jobs that ended where the good ones lie
    asha = "asha"  # many are begun, and only the best of them go on
    pbt = "pbt"  # jobs take over each other's weights


class Isolation(Enum):
    session = "session"  # jobs share a group of live workers
    process = "process"  # each job starts its own workers


OnFailure = Enum("OnFailure", {"continue": "continue", "stop": "stop"})  # `continue` is a word of Python's


class Models(Enum):
    best = "best"  # only a job that beats those before it stores its model and plots
    all = "all"


@dataclass
class Search:
    """Where the jobs of a multirun come from (sweep/search.py)."""

    method: Method = Method.grid
    trials: int | None = None  # jobs in all; null: 20, of a grid all (tpe: 20 at most)
    seed: int = 0  # of what is tried, not of the jobs
    min_epochs: int = 1  # asha: before the first job is stopped
    reduction: int = 3  # asha: one in so many goes on, to so many times the epochs
    population: int = 4  # pbt: jobs, all at the same epoch
    perturb_every_epochs: int = 5  # pbt: between two comparisons
    quantile: float = 0.25  # pbt: this share, the worst, takes over from the best as large a share
    resample: float = (
        0.25  # pbt: how often a new value is drawn; else the other's × 0.8 or 1.2, or its neighbour
    )


@dataclass
class Sweep:
    """How the jobs of a multirun are run."""

    isolation: Isolation = Isolation.session
    max_concurrent: int | None = None  # jobs at a time; null: as many as there is room for
    on_failure: OnFailure = OnFailure["continue"]  # of a job: the others run, or none that has not begun
    retry_failed: bool = False  # jobs that failed in an earlier sweep of the same config run again
    cache: bool = True  # a job that an earlier run has finished is not run again
    dry_run: bool = False  # only list the jobs
    models: Models = Models.best
