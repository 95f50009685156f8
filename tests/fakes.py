"""Stand-ins for what tests do not start: experiments without Hydra, ranks without Horovod."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from runner import schema
from runner.loop import fit
from runner.plan import DataFacts, make_plan
from runner.resources import Machine, ResourcePlan, plan_resources
from runner.schema import Experiment
from runner.train_state import Stretch, TrainState

LAPTOP = Machine(cpus=2)
TIMES = ("seconds/", "step_seconds/", "throughput/")


def make_experiment(settings: dict[str, Any] | None = None) -> Experiment:
    """Linear regression with plain SGD; `settings` maps dotted keys to values: {"scaling.num_workers": 4}."""
    experiment = Experiment(
        model=schema.Model(
            target={"_target_": "models.linear.Linear", "in_features": None, "out_features": None}
        ),
        dataset=schema.Dataset(schema.Task.regression, target={"_target_": "datasets.synthetic.line"}),
        loss=schema.Loss(),
        metrics={},
        optimizer=schema.Optimizer(0.1, target={"_target_": "torch.optim.SGD"}),
        scheduler=schema.Scheduler(
            target={"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 1.0, "total_iters": 0}
        ),
        lr_scaling=schema.LRScaling(target={"_target_": "runner.lr_scaling.linear"}),
        scaling=schema.Scaling(),
        trainer=schema.Trainer(),
        checkpoint=schema.Checkpoint(),
        horovod=schema.Horovod(),
        tracking=schema.Tracking(),
    )
    for key, value in (settings or {}).items():
        *path, last = key.split(".")
        node: Any = experiment
        for part in path:
            node = getattr(node, part)
        if not hasattr(node, last):
            raise KeyError(key)
        setattr(node, last, value)
    return experiment


def plan_of(settings: dict[str, Any] | None = None, rows: int = 1000, val_rows: int = 200) -> Any:
    """The plan of make_experiment(settings) on a laptop, for data of one column."""
    experiment = make_experiment(settings)
    return make_plan(experiment, DataFacts(rows, val_rows, (1,), 1), plan_resources(experiment, LAPTOP))


def plan_for(
    workers: int, batch: int, accumulation: int = 1, rows: int = 1000, val_rows: int = 200, **trainer: Any
) -> Any:
    """A plan by its sizes."""
    sizes = {"batch_size": batch, "accumulation_steps": accumulation, **trainer}
    settings = {f"trainer.{key}": value for key, value in sizes.items()}
    experiment = make_experiment(
        {"scaling.num_workers": workers, "lr_scaling.base_batch_size": 1, **settings}
    )
    return make_plan(experiment, DataFacts(rows, val_rows, (1,), 1), ResourcePlan(workers, 0.5, 0.0))


def metrics_of(state: TrainState, plan: Any, learner: Any, ingest: Any, communicator: Any) -> Any:
    """The metrics that the loop yields from `state` on."""
    moments = fit(state, Stretch(), plan, learner, ingest, communicator)
    return (moment.metrics for moment in moments)


def without_times(metrics: dict[str, float]) -> dict[str, float]:
    """Those that are equal each time."""
    return {key: value for key, value in metrics.items() if not key.startswith(TIMES)}


class Rank:
    """A Communicator whose ranks are threads of this process that meet at a barrier."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, slots: list[Any]) -> None:
        self.rank, self.size, self.local_rank = rank, size, rank
        self.waiting, self.waited = None, 0.0
        self._barrier, self._slots = barrier, slots

    def allreduce_mean(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(tensor)).mean(dim=0)

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(tensor))

    def allgather_bytes(self, content: bytes) -> list[bytes]:
        return self._exchange(content)

    def broadcast(self, value: Any) -> Any:
        found = self._exchange(value)[0]
        return found if self.rank == 0 else copy.deepcopy(found)  # as between processes, nothing is shared

    def broadcast_model(self, model: nn.Module) -> None:
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.copy_(self._exchange(tensor.clone())[0])

    def distribute(
        self, optimizer: torch.optim.Optimizer, model: nn.Module, accumulation_steps: int
    ) -> torch.optim.Optimizer:
        return optimizer

    @contextmanager
    def averaged(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = self.allreduce_mean(parameter.grad.clone())
        yield

    def close(self) -> None:
        pass

    def _exchange(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values


def on_ranks(size: int, function: Any) -> list[Any]:
    """function(communicator) on `size` ranks; their results in rank order. A failing rank ends the others."""
    barrier, slots = threading.Barrier(size, timeout=30), [None] * size

    def call(rank: int) -> Any:
        try:
            return function(Rank(rank, size, barrier, slots))
        except BaseException:
            barrier.abort()
            raise

    return results_of(size, call)


def results_of(size: int, call: Callable[[int], Any]) -> list[Any]:
    """call(rank) on a thread each, in rank order; raises the first error that is not the consequence of another's."""
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(call, rank) for rank in range(size)]
    errors = [found for found in (future.exception() for future in futures) if found]
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (causes or errors)[0]
    return [future.result() for future in futures]
