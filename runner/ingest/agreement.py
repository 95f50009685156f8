"""Before an epoch: do all ranks have the same rows and steps ahead of them?"""

from __future__ import annotations

import torch

from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.ingest.batches import Ingest
from runner.plan import Plan


def compare_orders(ingest: Ingest, plan: Plan, epoch: int, communicator: Communicator) -> None:
    """Raise TrainingError where a rank would take other rows or steps than the others: they would hang in mid-epoch, or
    pair the gradients of different batches. Collective."""
    orders = communicator.allgather(torch.tensor(ingest.order(epoch), dtype=torch.int64))
    counts = [plan.steps_of(rows) for rows in orders[:, 0].tolist()]
    remedy = "dataset: its sampler must give all ranks the same rows"
    if len(set(counts)) > 1:
        steps = ", ".join(f"rank {rank} {count}" for rank, count in enumerate(counts))
        raise TrainingError(f"epoch {epoch}: the ranks' steps differ ({steps}); {remedy}")
    if not (orders == orders[0]).all():
        raise TrainingError(f"epoch {epoch}: the ranks' rows differ; {remedy}")
