"""The same experiment, trained again by other processes, ends with the same weights and metrics bit for bit: on 2, 3 and
4 workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from runner.errors import TrainingError
from runner.executors.live_workers import Reports
from runner.prepare import prepare
from runner.report.console import Screen
from runner.verbs.proof import TIMED, Compose, Proof
from runner.verbs.proof_jobs import (
    Open,
    groups,
    job_of,
    memory_of,
    own_arguments,
    planned,
    proved,
    settled,
    store_of,
)

SIZES = (2, 3, 4)
REPEATS = 2
COLUMNS = ("workers", "repeat", "steps", "weights sha256", "metrics", "verdict")


def prove(arguments: Sequence[str], compose: Compose, screen: Screen, opened: Open | None = None) -> Proof:
    """`repeats=3` trains three times on each number of workers; the batch of a worker is the experiment's."""
    own, overrides = own_arguments(arguments, {"repeats": REPEATS}, least=2)
    repeats = own["repeats"]
    request = proved("determinism", compose, overrides)
    experiment = settled(request.experiment, patience=request.experiment.trainer.patience)
    experiment = replace(experiment, scaling=replace(experiment.scaling, num_workers=1))
    prepared = prepare(replace(request, experiment=experiment))
    screen.line(f"prove determinism: {repeats * len(SIZES)} trainings, in {request.run_dir}")
    rows: list[tuple[str, ...]] = []
    holds, open_workers = True, opened or groups(request)
    for size in SIZES:
        sized = planned(prepared, prepared.data.facts, size)
        first: tuple[str, Any] | None = None
        for repeat in range(1, repeats + 1):
            job = job_of(sized, request.run_dir / f"{size}-workers-{repeat}", request.import_roots)
            start = (str(size), str(repeat), str(sized.plan.total_steps))
            try:
                with open_workers(size) as workers:  # other processes each time
                    found = outcome(workers.train(job, memory_of(sized)))
            except TrainingError as error:
                rows.append((*start, "", "", f"FAILED: {error}"))
                holds = False
                break
            is_equal = first in (None, found)
            verdict = "reference" if first is None else "equal" if is_equal else "NOT equal"
            rows.append((*start, found[0][:16], str(sum(map(len, found[1]))), verdict))
            screen.line(f"{size} workers, training {repeat}: {verdict}")
            holds &= is_equal
            first = first or found
    return Proof("determinism: bit for bit", COLUMNS, rows, holds, request.run_dir, store_of(request))


def outcome(reports: Reports) -> tuple[str, list[dict[str, str]]]:
    """The weights' sha256, and all that was measured but its times; NaN equals itself."""
    history = [metrics for report in reports for metrics in report.get("history", ())]
    (sha256,) = [report["weights_sha256"] for report in reports if "weights_sha256" in report]
    return sha256, [
        {name: repr(value) for name, value in metrics.items() if not name.startswith(TIMED)}
        for metrics in history
    ]
