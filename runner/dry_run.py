"""One step and one evaluated batch in this process: no Ray, no Horovod, no MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from runner.communicator import SingleProcess
from runner.ingest.batches import Columns, MicroBatch, placement
from runner.ingest.tensors import as_tensors
from runner.learner import build_learner
from runner.loop import evaluate, monitored, step, summary
from runner.plan import MAX_EVAL_BATCH
from runner.prepare import Prepared
from runner.process_state import settle
from runner.rehearsal import tried
from runner.report.console import Screen, metrics_line
from runner.train_state import Metrics, Stretch

CPU = torch.device("cpu")


def dry_run(prepared: Prepared, screen: Screen) -> Metrics:
    """Build everything as a worker does, train on the first rows of one worker's batch, evaluate some others."""
    experiment, plan, data = prepared.experiment, prepared.plan, prepared.data
    settle(experiment, plan)
    place = placement(experiment, CPU)
    rows = min(plan.batch_size, plan.train_rows)
    inputs, targets = (place(column) for column in as_tensors(data.splits["train"].read(0, rows)))
    val_rows = min(plan.val_rows, MAX_EVAL_BATCH)
    val_inputs, val_targets = as_tensors(data.splits["val"].read(0, val_rows))
    held_out = FirstRows((place(val_inputs), place(val_targets)))
    alone = SingleProcess()
    stretch = Stretch()
    learner = build_learner(experiment, plan, data.facts, alone, CPU, prepared.initial)
    with tried(experiment, plan.for_model(data.facts), inputs, targets):
        learner.train_mode()
        step(learner, [MicroBatch(inputs, targets, True, rows)], stretch, alone)
        metrics = summary(stretch, learner, alone)
        metrics |= evaluate(replace(plan, val_rows=val_rows), learner, held_out, alone)
        monitored(metrics, plan.goal)
    parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    screen.line(
        f"dry run: a step on {rows} rows {tuple(inputs.shape[1:])}, {parameters:,} parameters: {metrics_line(metrics)}; "
        "nothing was launched"
    )
    return metrics


@dataclass(frozen=True)
class FirstRows:
    """An ingest of one evaluation batch."""

    columns: Columns

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        yield from ()

    def order(self, epoch: int) -> tuple[int, int]:
        return 0, 0

    def evaluation(self) -> Iterator[Columns]:
        yield self.columns

    def close(self) -> None:
        pass
