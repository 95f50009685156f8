"""A rank that is kept: model, optimizer and data stay in its process, and the driver steps it.

What Horovod's RayExecutor calls an executable (`executable_cls`); runner/replicas.py is the driver's side. The training is the
one of every executor: loop.fit, which is a generator, is left where it stands between two calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from runner.communicator import Communicator
from runner.executors.ray_group import Shards
from runner.ingest.observed import ObservedIngest
from runner.job import Job, Memory, enter
from runner.learner import Learner, change_lr
from runner.loop import evaluate, fit
from runner.plan import Plan
from runner.rank_state import random_state, set_random_state
from runner.saving import agree
from runner.schema import Experiment
from runner.train_state import Metrics, TrainState
from runner.watchdog import NullWatchdog, Watchdog
from runner.worker import built, recorded, watched


class Reached(NamedTuple):
    """Where a rank stands after some steps."""

    step: int
    epoch: float
    lr: float | None  # of the last step
    is_over: bool  # by the plan, or stopped early
    loss: list[float]  # this rank's [Σ losses, Σ weights, rows] since the last of `measured`
    measured: list[Metrics]  # after each epoch and validation on the way; the same on all ranks


class Replica:
    """One of equal ranks. All of them call a method together, but for `weights`."""

    learner: Learner

    def __init__(self, connect: Callable[[], Communicator]) -> None:
        self.communicator = connect()
        self.state = TrainState()

    @property
    def rank(self) -> int:
        return self.communicator.rank

    @property
    def model(self) -> nn.Module:
        return self.learner.model

    def build(self, job: Job, held: list[Any], shards: Shards) -> None:
        """All that is trained, at its first step. `held`: a reference to the Memory."""
        import ray

        enter(job)  # what is unpickled below may be of the user's modules
        with recorded(job.run_dir, self.rank):
            self.begin(job, ray.get(held[0]), shards[self.rank])

    def begin(self, job: Job, memory: Memory, shards: Mapping[str, Any]) -> None:
        """The same with this rank's own."""
        self._job, self._until = job, math.inf
        self._watchdog: Watchdog | NullWatchdog = NullWatchdog()
        self._training, self._ingest = built(job, memory, shards, self.communicator, self.state)
        self.learner = self._training.learner
        self._left = time.perf_counter(), self.communicator.waited
        self._moments = fit(
            self.state,
            self._training.stretch,
            job.plan,
            self.learner,
            ObservedIngest(self._ingest, self._beat),
            self.communicator,
            lambda state: state.step >= self._until,  # where fit() pauses
        )

    def train(self, steps: int | None) -> Reached:
        """So many steps, or to the training's end."""
        state, plan, stretch = self.state, self._job.plan, self._training.stretch
        measured: list[Metrics] = []
        with self._at_work():
            self._until = math.inf if steps is None else state.step + steps
            for moment in self._moments:
                if moment.metrics:
                    measured.append(moment.metrics)
                if state.step >= self._until:
                    break
            loss = stretch.loss.tolist()
        epoch = state.epoch + state.rows / plan.epoch_rows
        return Reached(state.step, epoch, state.lr, state.ended or state.stopped, loss, measured)

    def evaluate(self) -> Metrics:
        """Over every validation row once; changes nothing."""
        with self._at_work():
            random = random_state()
            metrics = evaluate(self._job.plan, self.learner, self._ingest, self.communicator)
            self.learner.train_mode()
            set_random_state(random)
        return metrics

    def weights(self) -> dict[str, Tensor]:
        """A copy of this rank's, as they are evaluated."""
        return {name: value.detach().cpu().clone() for name, value in self.learner.weights().items()}

    def weights_sha256(self) -> str:
        """Raises TrainingError where the ranks' parameters differ."""
        with self._at_work():
            digest = agree(self.learner.model, self.learner.evaluated_model(), self.communicator)
            self.learner.train_mode()
        return digest

    def change_lr(self, experiment: Experiment, plan: Plan) -> None:
        """Take the learning rate of that plan from the next step on."""
        with self._at_work():
            change_lr(self.learner, experiment, plan, self.state.progress + plan.schedule_offset)

    def call(self, function: Callable[[Replica], Any]) -> Any:
        """What a function of the user's returns for this rank."""
        with self._at_work():
            return function(self)

    def _beat(self) -> None:
        self._watchdog.beat()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Watched and recorded, as a training is; the time between two calls is no time of the training."""
        stretch, (stopped, waited) = self._training.stretch, self._left
        stretch.started += time.perf_counter() - stopped
        with (
            recorded(self._job.run_dir, self.rank),
            watched(self._job, self.communicator, self.state) as self._watchdog,
        ):
            stretch.waited -= self.communicator.waited - waited
            yield
        self._left = time.perf_counter(), self.communicator.waited
