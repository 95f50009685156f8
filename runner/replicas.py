"""Live replicas of a training, for a notebook or a program: train some steps, look, change the learning rate, go on.

    with Replicas("model=mlp", "scaling.num_workers=2") as replicas:
        replicas.train(steps=5)
        replicas.weights()
        replicas.set_lr(0.01)
        replicas.train(steps=5)
        replicas.evaluate()

Horovod's RayExecutor in its stateful form (https://horovod.readthedocs.io/en/stable/ray_include.html#stateful-execution). Not
for a long training: it writes no checkpoints and records nothing in MLflow, and nothing restarts a lost worker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from torch import Tensor

from runner import __main__ as door
from runner import build, config, lightning, secrets
from runner.diagnosis import diagnose
from runner.errors import LaunchError, TrainingError, refuse
from runner.executor_schema import ExecutorName
from runner.executors import ray_cluster
from runner.executors.attempts import EndedError
from runner.executors.choice import DEFAULT
from runner.executors.ray_executor import group_of
from runner.executors.ray_group import RayGroup, dealt
from runner.executors.replica import Reached, Replica
from runner.options import with_its_rate, with_options
from runner.prepare import prepare
from runner.ranges import check_values
from runner.request import Request
from runner.schema import Backend
from runner.train_state import Metrics
from runner.verbs.proof_jobs import job_of, memory_of


class Replicas:
    """A training whose ranks live until `close`, in a Ray that is running already or is started here.

    `overrides` are those of `python -m runner`. `plan` says batches, steps and the learning rate; `history` has the metrics of
    each epoch and validation. What its ranks print is in `run_dir`/logs. Raises ConfigError or PreflightError for what the
    command refuses too, LaunchError where the workers do not start. After a failure it is closed.
    """

    def __init__(self, *overrides: str) -> None:
        was_running = _ray_is_running()
        request = _request(overrides)
        prepared = prepare(request)
        ray_cluster.start(
            prepared.address, prepared.machine.cpus, request.import_roots, prepared.experiment.verbose
        )
        self._started_ray = not was_running
        self._group: RayGroup | None = None
        self._job = job_of(prepared, request.run_dir, request.import_roots)
        self.plan, self.run_dir = prepared.plan, request.run_dir
        self.history: list[Metrics] = []
        self._reached = Reached(0, 0.0, None, False, [], [])
        job, memory = self._job, memory_of(prepared)
        try:
            self.run_dir.mkdir(parents=True)
            self._group = group_of(job, Replica)
            shards, memory = dealt(job, memory)
            held = [_put(memory)]  # in a list Ray leaves the reference as it is
            self._ask(lambda replica: replica.build(job, held, shards))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def step(self) -> int:
        """Optimizer steps that are done."""
        return self._reached.step

    def train(self, steps: int | None = None) -> Metrics:
        """Train so many steps, or to the end of the config's training. Returns where it stands: `step`, `epoch`, `lr` (of the last
        step), `train/loss` (the mean since the last epoch or validation ended), and what was measured at that step.

        Raises ConfigError for more steps than are left, TrainingError with the one cause of a failure.
        """
        self._check_steps(steps)
        found = self._ask(lambda replica: replica.train(steps))
        self._reached = reached = found[0]
        self.history += reached.measured
        here: Metrics = {"step": reached.step, "epoch": reached.epoch}
        if reached.lr is not None:
            here["lr"] = reached.lr
        loss, weight, rows = (sum(column) for column in zip(*(each.loss for each in found), strict=True))
        if rows:
            return {**here, "train/loss": loss / weight if weight else float("nan")}
        return {**here, **self.history[-1]}

    def evaluate(self) -> Metrics:
        """Loss and metrics over every validation row once, as `val/…`; changes nothing."""
        metrics: Metrics = self._ask(lambda replica: replica.evaluate())[0]
        return metrics

    def weights(self) -> list[dict[str, Tensor]]:
        """A copy of each replica's state dict, on the CPU, in the order of the ranks."""
        return self._ask(lambda replica: replica.weights())

    def weights_sha256(self) -> str:
        """As result.json has it of a run. Raises TrainingError where the replicas differ."""
        digest: str = self._ask(lambda replica: replica.weights_sha256())[0]
        return digest

    def set_lr(self, lr: float) -> str:
        """Train with another optimizer.lr from the next step on; LR rule and scheduler hold for it as if it had always been so.
        Returns the line of the new learning rate."""
        target = self._job.experiment.model.target["_target_"]
        if lightning.is_module(build.locate(target)):
            raise refuse("set_lr", lr, f"the optimizer of {target} is its own; use execute to change it")
        experiment = with_options(self._job.experiment, {"optimizer.lr": lr})
        check_values(experiment)
        plan = with_its_rate(self.plan, experiment)
        self._ask(lambda replica: replica.change_lr(experiment, plan))
        self.plan = plan
        return plan.learning_rate.line()

    def execute(self, function: Callable[[Replica], Any]) -> list[Any]:
        """What `function(replica)` returns on every rank, in their order; a replica has `rank`, `model` and `learner`."""
        return self._ask(lambda replica: replica.call(function))

    def execute_single(self, function: Callable[[Replica], Any]) -> Any:
        """The same on rank 0 alone: without anything that ranks do together."""
        return self._ask(lambda replica: replica.call(function), is_single=True)[0]

    def close(self) -> None:
        """End the workers, and Ray if it was started here; may be called twice."""
        if self._group is not None:
            self._group.close()
        if self._started_ray and _ray_is_running():
            self._started_ray = False
            sys.modules["ray"].shutdown()

    def _check_steps(self, steps: int | None) -> None:
        reached, plan = self._reached, self.plan
        longer = "trainer.epochs=… makes it longer"
        if reached.is_over:
            raise TrainingError(f"the training is over, at step {reached.step}; {longer}")
        if steps is None:
            return
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise refuse("steps", steps, "must be a whole number, 1 or more", "train(steps=5)")
        left = plan.total_steps - reached.step
        if steps > left and not plan.learning_rate.is_adaptive:
            why = f"{left} are left of {plan.length()}; {longer}"
            raise refuse("steps", steps, why, f"train(steps={left})")

    def _ask(self, function: Callable[[Replica], Any], is_single: bool = False) -> list[Any]:
        """What a function of a replica returns on each rank. Raises TrainingError with the root cause."""
        group, since = self._group, time.time()
        if group is None or not group.is_open:
            raise LaunchError("these replicas are closed")
        try:
            return group.execute(function, is_single)
        except EndedError as error:
            found = diagnose(self.run_dir, self.plan.num_workers, since, str(error))
            raise found.error from None
        except BaseException:  # Ctrl-C: the ranks are within a step
            self.close()
            raise


def _request(overrides: tuple[str, ...]) -> Request:
    """As the command line composes it, for this executor and without a record. Raises ConfigError."""
    arguments = list(overrides)
    secrets.learn_from_process(arguments)
    roots = door.import_roots(arguments)
    sys.path[:] = [*roots, *(path for path in sys.path if path not in roots)]
    config.register_schema()
    request = door.request_of(arguments, roots)
    experiment = request.experiment
    if experiment.executor.name not in (DEFAULT, ExecutorName.ray_executor):
        why = "replicas are workers of Horovod's RayExecutor"
        raise refuse("executor", experiment.executor.name.value, why, "executor=ray_executor")
    if experiment.dry_run:
        raise refuse("dry_run", "true", "replicas train", "python -m runner dry_run=true …")
    experiment = replace(
        experiment,
        executor=replace(experiment.executor, name=ExecutorName.ray_executor),
        tracking=replace(experiment.tracking, backend=Backend.none),
    )
    run_dir = request.outputs / "replicas" / f"{datetime.now().astimezone():%Y-%m-%d/%H-%M-%S-%f}"
    return replace(request, experiment=experiment, run_dir=run_dir)


def _ray_is_running() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _put(value: Any) -> Any:
    import ray

    return ray.put(value)
