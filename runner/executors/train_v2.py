"""Ray Train V2 with Horovod as its backend, which V2 itself does not have: for the day when V1 goes, and HorovodTrainer with it.

Use it where V2 is wanted already. Not in a process that has used V1, whose version of Ray Train is settled; not for sweeps; and
it starts no faster. A run on a cluster may go on with fewer workers where nodes are lost, and with more where they join
(executor.min_workers): each time from its last checkpoint. To go on from memory, type executor=elastic.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from runner import going_on, secrets
from runner.diagnosis import account_of
from runner.errors import RunnerError, TrainingError
from runner.executors import ray_cluster
from runner.executors.attempts import Attempts
from runner.executors.board import Board, Event, started
from runner.executors.ray_train import horovod_settings, scaling
from runner.executors.session import collect
from runner.ingest import ray_data
from runner.job import Job, Memory, Received, Restarted
from runner.plan import make_plan
from runner.profile import TIMELINE
from runner.schema import Ingest

POLL_SECONDS = 10.0  # that one look at the board takes at most
ASK_SECONDS = 60.0  # for the driver to answer a rank
RECORD_SECONDS = 0.5  # for the other ranks to write down what happened to them
SPARE_CALLS = 4  # threads of the board besides those in which ranks wait


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job` on Ray; on the driver, `received` gets rank 0's reports, and `restarted` the number of each restart
    and why. Raises TrainingError with the root cause.

    Ray must have been started (ray_cluster.start), with V2 (ray_cluster.use_train).
    """
    from ray.train import RunConfig, ScalingConfig

    from runner.executors.horovod_backend import HorovodConfig
    from runner.executors.v2_trainer import Trainer

    experiment = job.experiment
    name = f"train-{uuid4().hex[:12]}"
    board = started(Board, name, job.plan.num_workers + SPARE_CALLS)
    driver = Driver(job, memory, board, received, restarted)
    timeout = experiment.horovod.placement_group_timeout_s
    is_local = ray_cluster.cluster_address(experiment.scaling.address) is None
    settings = scaling(job.plan.resources, experiment.scaling.placement_strategy)
    del settings["trainer_resources"]  # V2's controller takes none
    if experiment.executor.min_workers is not None and not is_local:
        settings["num_workers"] = (experiment.executor.min_workers, job.plan.num_workers)
    trainer = Trainer(
        _train_loop_per_worker,
        train_loop_config={"board": name},
        backend_config=HorovodConfig(**horovod_settings(experiment.horovod)),
        scaling_config=ScalingConfig(**settings),
        run_config=RunConfig(name="ray", storage_path=str(job.run_dir.absolute())),
        board=board,
        follow=driver.follow,
        environment={
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(timeout),
            # Of nodes that a cloud takes back: an actor that looks for it.
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0" if is_local else "1",
        },
        is_local=is_local,
    )
    try:
        trainer.fit()
    except Exception as error:
        raise driver.explained(error) from error
    collect(job.run_dir, driver.node)


class Driver:
    """Hears what the ranks report, gives them their job, and says whether there is another attempt."""

    def __init__(
        self, job: Job, memory: Memory, board: Any, received: Received, restarted: Restarted
    ) -> None:
        import ray

        self._job, self._splits = job, memory.splits
        if job.experiment.dataset.ingest is Ingest.ray_data:
            memory = replace(memory, splits=ray_data.kept(memory.splits))
        self._memory = ray.put(memory)
        self._board, self._received, self._restarted = board, received, restarted
        self._attempts = Attempts(job, restarted)
        self._final: RunnerError | None = None
        self._groups = 0  # of workers, that were started
        self._change: str | None = None  # since the one before it
        self._handed: Any = None  # what the ranks of the last one get
        self.node = ray.get_runtime_context().get_node_id()

    def follow(self, running: Any) -> None:
        """Until the controller's `running` is over. Raises what it raises."""
        import ray

        seen, is_over = 0, False
        while not is_over:
            news = self._board.events.remote(seen, POLL_SECONDS)
            ray.wait([news, running])  # for whichever is first
            if is_over := bool(ray.wait([running], timeout=0)[0]):
                news = self._board.events.remote(seen, 0.0)
            events = ray.get(news)
            for index, event in enumerate(events, start=seen):
                self._hear(index, event)
            seen += len(events)
        ray.get(running)

    def explained(self, error: BaseException) -> RunnerError:
        """The root cause of the training's end."""
        return self._final or self._attempts.failed(account_of(error)) or TrainingError(account_of(error))

    def _hear(self, index: int, event: Event) -> None:
        what, said = event
        if what == "report":
            if "resumed" in said and self._change is not None:
                said, self._change = said | {"event": self._change}, None
            self._received(said)
        elif what == "starts":
            self._start(said)
        elif what == "joins":
            self._board.answer.remote(index, self._handed)
        else:
            time.sleep(RECORD_SECONDS)
            collect(self._job.run_dir, self.node)
            self._final = self._final or self._attempts.failed(said)
            self._board.answer.remote(index, self._final is None)

    def _start(self, workers: int) -> None:
        """A group of so many is about to start."""
        import ray

        self._groups, self._handed = self._groups + 1, None
        shards: list[Mapping[str, Any]] = [{}] * workers
        try:
            if workers != self._job.plan.num_workers:
                self._job, self._change = resized(self._job, workers)
            if self._job.experiment.dataset.ingest is Ingest.ray_data:  # V2 knows no stream of one rank alone
                shards, _ = ray_data.dealt(self._splits, self._job.plan, self._job.experiment.seed)
        except RunnerError as error:  # the ranks get no job, and end
            self._final = error
            return
        handed = (secrets.hide(self._job), shards, self._memory, self._groups > 1)
        self._handed = [ray.put(handed)]  # in a list Ray leaves the reference as it is


def resized(job: Job, workers: int) -> tuple[Job, str | None]:
    """`job` for so many workers, from its last checkpoint on, and what changes in words. Raises ConfigError where that cannot be."""
    experiment = job.experiment
    experiment = replace(experiment, scaling=replace(experiment.scaling, num_workers=workers))
    manifest = going_on.newest(job.run_dir)
    resources = replace(job.plan.resources, num_workers=workers)
    plan = make_plan(experiment, job.data, resources, going_on.position(manifest))
    job = replace(job, experiment=experiment, plan=plan)
    if manifest is None:
        return job, None
    return job, going_on.check(manifest, experiment, plan, job.data, is_finished=False)


def _train_loop_per_worker(config: dict[str, Any]) -> None:
    """Runs in a Ray worker: the Ray side of worker.train_loop_per_worker."""
    import ray
    from ray import train

    from runner.communicator import Communicator, HorovodCommunicator
    from runner.job import enter
    from runner.worker import train_loop_per_worker

    board, rank = ray.get_actor(config["board"]), train.get_context().get_world_rank()
    handed = ray.get(board.ask.remote(("joins", rank), ASK_SECONDS))
    if handed is None:
        raise TrainingError("the driver gives this rank no job")
    (open_job, kept), shards, memory, is_restart = ray.get(handed[0])
    job: Job = secrets.reveal(open_job, kept)
    enter(job)  # what is unpickled below may be of the user's modules
    experiment = job.experiment

    def connect() -> Communicator:
        timeline = job.run_dir / TIMELINE if experiment.horovod.timeline else None
        return HorovodCommunicator(experiment.horovod, experiment.trainer.deterministic, timeline)

    def report(values: dict[str, Any]) -> None:
        # Not train.report: it waits until all ranks have called it and the controller has looked.
        if rank == 0:
            ray.get(board.tell.remote(("report", values)))

    train_loop_per_worker(job, ray.get(memory), shards[rank], connect, report, rank, is_restart)
