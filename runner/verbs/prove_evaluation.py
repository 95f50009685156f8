"""Every validation row is counted once on 1, 2 and 3 workers, and the metrics are scikit-learn's on all predictions.

After a few steps of training, the same weights are evaluated on each number of workers, in float64. The ranks keep
which rows the evaluation was given and what the model said of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from runner import build, lightning
from runner.communicator import Communicator
from runner.errors import ConfigError, TrainingError
from runner.executors.live_workers import LiveWorkers
from runner.ingest.batches import Columns, Ingest, MicroBatch, placement
from runner.ingest.rows import Rows
from runner.ingest.tensors import as_tensors
from runner.job import Job, Memory
from runner.learner import build_learner
from runner.loop import evaluate
from runner.plan import MAX_EVAL_BATCH, DataFacts
from runner.prepare import Prepared, prepare
from runner.process_state import settle
from runner.report.console import Screen
from runner.schema import Experiment, Task
from runner.train_state import Metrics
from runner.verbs.proof import Compose, Proof
from runner.verbs.proof_jobs import (
    Open,
    groups,
    in_float64,
    job_of,
    last_state,
    memory_of,
    own_arguments,
    planned,
    proved,
    settled,
    store_of,
)
from runner.verbs.proof_metrics import by_scikit_learn
from runner.worker import open_ingest

SIZES = (1, 2, 3)
STEPS = 5
TOLERANCE, LIBRARY_TOLERANCE = 1e-12, 1e-6  # relative above 1; torchmetrics divides in float32
OUTPUT_BYTES = 2**28  # of the predictions of all rows
COLUMNS = ("workers", "of", "runner", "scikit-learn", "difference", "verdict")
ALONE = "none: as 1 worker"


@dataclass(frozen=True)
class Seen:
    """What one rank's evaluation was given and found."""

    rows: list[bytes]  # a digest a row
    targets: Tensor
    outputs: Tensor
    metrics: Metrics  # of all ranks


def prove(arguments: Sequence[str], compose: Compose, screen: Screen, opened: Open | None = None) -> Proof:
    """Raises ConfigError for a LightningModule, which measures by itself."""
    own, overrides = own_arguments(arguments, {"steps": STEPS})
    request = proved("evaluation", compose, overrides)
    refuse_modules(request.experiment)
    experiment = in_float64(settled(request.experiment, max_steps=own["steps"]))
    experiment = replace(experiment, scaling=replace(experiment.scaling, num_workers=1))
    prepared = prepare(replace(request, experiment=experiment))
    facts = fitting(prepared.data.facts, experiment.dataset.task)
    expected = Counter(digests(prepared.data.splits["val"], facts.val_rows, experiment))
    screen.line(f"prove evaluation: on {', '.join(map(str, SIZES))} workers, in {request.run_dir}")
    rows: list[tuple[str, ...]] = []
    alone: Metrics = {}
    found: list[Seen] = []
    holds, open_workers = True, opened or groups(request)
    try:
        for size in SIZES:
            with open_workers(size) as workers:
                if not rows:
                    job = job_of(
                        planned(prepared, facts, 1), request.run_dir / "training", request.import_roots
                    )
                    workers.train(job, memory_of(prepared))
                    prepared = started_from(prepared, last_state(job.run_dir)["weights"], str(job.run_dir))
                sized = planned(prepared, facts, size)
                job = job_of(sized, request.run_dir / f"{size}-workers", request.import_roots)
                found = seen(workers, job, memory_of(sized))
            alone = alone or found[0].metrics
            for row, is_equal in compared(size, found, expected, sized, alone):
                rows.append(row)
                holds &= is_equal
    except TrainingError as error:
        rows.append((str(size), "", "", "", "", f"FAILED: {error}"))
        holds = False
    notes = [
        f"{facts.val_rows} of {prepared.data.facts.val_rows} validation rows; metrics within {TOLERANCE:g} in float64"
    ]
    if experiment.metrics:
        notes.append(f"metrics of torchmetrics within {LIBRARY_TOLERANCE:g}: it divides in float32")
    return Proof("evaluation: each row once", COLUMNS, rows, holds, request.run_dir, store_of(request), notes)


def seen(workers: LiveWorkers, job: Job, memory: Memory) -> list[Seen]:
    """By rank."""
    return workers.run(_evaluate, job, memory)


def compared(
    size: int, found: Sequence[Seen], expected: Counter[bytes], prepared: Prepared, alone: Metrics
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """The lines of one number of workers: the rows, and each metric."""
    counted = Counter(digest for rank in found for digest in rank.rows)
    missing, twice = (expected - counted).total(), (counted - expected).total()
    is_equal = not (missing or twice)
    rows = f"{(counted & expected).total()} of {expected.total()}"
    what = f"{missing} missing, {twice} too many"
    yield (str(size), "rows", rows, "", what, "equal" if is_equal else "NOT equal"), is_equal
    ranks = [rank for rank in found if rank.rows]
    targets, outputs = (torch.cat([getattr(rank, name) for rank in ranks]) for name in ("targets", "outputs"))
    theirs = {}
    if outputs.isfinite().all():  # scikit-learn refuses others
        theirs = by_scikit_learn(prepared.experiment, prepared.data.facts, targets, outputs)
    for name, value in found[0].metrics.items():
        reference = theirs.get(name, alone[name])
        is_library = name.removeprefix("val/") in prepared.experiment.metrics
        close = LIBRARY_TOLERANCE if is_library else TOLERANCE
        is_equal = math.isclose(value, reference, rel_tol=close, abs_tol=close)
        is_equal |= math.isnan(value) and math.isnan(reference)
        shown = f"{theirs[name]:.9g}" if name in theirs else ALONE
        verdict = "equal" if is_equal else "NOT equal"
        yield (str(size), name, f"{value:.9g}", shown, f"{abs(value - reference):.1e}", verdict), is_equal


def refuse_modules(experiment: Experiment) -> None:
    target = experiment.model.target["_target_"]
    if lightning.is_module(build.locate(target)):
        raise ConfigError(
            f"model={target}: a LightningModule measures by itself, so there are no predictions to compare; "
            "prove determinism and prove equivalence hold for it"
        )


def fitting(facts: DataFacts, task: Task) -> DataFacts:
    """As many validation rows as have room for their predictions."""
    tokens = facts.input_shape[0] if task is Task.language_modeling else 1
    rows = max(1, OUTPUT_BYTES // (8 * tokens * max(1, facts.out_features)))
    return replace(facts, val_rows=min(facts.val_rows, rows))


def started_from(prepared: Prepared, weights: Mapping[str, Tensor], name: str) -> Prepared:
    """With these first weights: those that were evaluated, not a model's own beside its moving average."""
    model = replace(prepared.experiment.model, init_from=name, init_strict=True)
    experiment = replace(prepared.experiment, model=model)
    return replace(prepared, experiment=experiment, initial=weights)


def digests(rows: Rows, count: int, experiment: Experiment) -> list[bytes]:
    """Of the first `count` rows, as an evaluation is given them."""
    place, found = placement(experiment, torch.device("cpu")), []
    for start in range(0, count, MAX_EVAL_BATCH):
        pair = rows.read(start, min(start + MAX_EVAL_BATCH, count), experiment.seed)
        inputs, targets = (place(column) for column in as_tensors(pair))
        found += _digests(inputs, targets)
    return found


def _digests(inputs: Tensor, targets: Tensor) -> list[bytes]:
    columns = zip(inputs.numpy(), targets.numpy(), strict=True)
    return [blake2b(row.tobytes() + target.tobytes(), digest_size=16).digest() for row, target in columns]


@dataclass
class RecordedIngest:
    """Another ingest, whose validation rows are kept."""

    inner: Ingest
    rows: list[bytes] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        return self.inner.steps(epoch, done)

    def order(self, epoch: int) -> tuple[int, int]:
        return self.inner.order(epoch)

    def evaluation(self) -> Iterator[Columns]:
        for inputs, targets in self.inner.evaluation():
            self.rows += _digests(inputs, targets)
            self.targets.append(targets)
            yield inputs, targets

    def close(self) -> None:
        self.inner.close()


def _evaluate(job: Job, memory: Memory, shards: Mapping[str, Any], communicator: Communicator) -> Seen:
    """Runs on each rank: the evaluation of the training loop."""
    experiment, plan = job.experiment, job.plan
    settle(experiment, plan)
    place = placement(experiment, torch.device("cpu"))
    learner = build_learner(experiment, plan, job.data, communicator, place.device, memory.initial)
    ingest = RecordedIngest(open_ingest(job, memory, shards, communicator.rank, place))
    outputs: list[Tensor] = []
    learner.evaluated_model().register_forward_hook(lambda model, inputs, said: outputs.append(said))
    metrics = evaluate(plan, learner, ingest, communicator)
    ingest.close()
    none = torch.empty(0)
    return Seen(ingest.rows, torch.cat(ingest.targets or [none]), torch.cat(outputs or [none]), metrics)
