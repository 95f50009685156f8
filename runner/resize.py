"""The plan of a training that goes on with other workers."""

from __future__ import annotations

import math
from dataclasses import replace

from runner.executor_schema import Keep
from runner.plan import DataFacts, Plan, Position, make_plan
from runner.resources import workers_in_words
from runner.schema import Experiment


def resized(
    experiment: Experiment, plan: Plan, data: DataFacts, workers: int, position: Position
) -> tuple[Experiment, Plan]:
    """The training of `plan` from `position` on by so many workers; `executor.keep` says what stays as it is.

    global_batch: B rows are split over n workers, whose ⌈B/n⌉ rows go through the model in as few micro-batches as trainer.batch_size
    allows. per_worker_batch: a new plan, in which the LR follows its rule. Raises ConfigError where that does not hold.
    """
    resources = replace(plan.resources, num_workers=workers)
    if experiment.executor.keep is Keep.global_batch:
        share = math.ceil(plan.global_batch_size / workers)
        accumulation = math.ceil(share / experiment.trainer.batch_size)
        rows = math.ceil(share / accumulation)
        return experiment, replace(
            plan, resources=resources, batch_size=rows, accumulation_steps=accumulation
        )
    changed = replace(experiment, scaling=replace(experiment.scaling, num_workers=workers))
    return changed, make_plan(changed, data, resources, position)


def line(plan: Plan, step: int, before: int | None) -> str:
    """What goes on from `step`, with how many workers and which LR; `before` there were so many."""
    batch = f"global batch {plan.global_batch_size} = {workers_in_words(plan.num_workers)} × "
    is_even = plan.global_batch_size % (plan.num_workers * plan.accumulation_steps) == 0
    batch += f"{'' if is_even else 'up to '}{plan.batch_size} rows"
    if plan.accumulation_steps > 1:
        batch += f" × {plan.accumulation_steps} accumulated"
    instead = "" if before in (None, plan.num_workers) else f" instead of {before}"
    return (
        f"goes on from step {step} with {workers_in_words(plan.num_workers)}{instead}: {batch}; "
        f"{plan.learning_rate.line()}"
    )
