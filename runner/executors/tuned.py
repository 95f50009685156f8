"""A population from the inside: one Tuner over HorovodTrainer, whose trials are the members.

Use it for search=pbt. Tune ends a member's workers at each comparison and starts new ones, so it is for trainings of
minutes. Imports no torch at the top: the processes around the ranks need none.
"""

from __future__ import annotations

import gc
import math
import tempfile
from pathlib import Path
from typing import Any

from runner.executors.board import Board

TAKE_SECONDS = 30.0  # that a rank waits for one answer


class PopulationBoard(Board):
    """Its jobs are the members'. Events besides rank 0's reports: ("recovers" or "failed", member, Ray's account) and
    ("ended", member, error)."""

    def __init__(self) -> None:
        super().__init__()
        self._restarted: set[int] = set()

    def fit(self, name: str, spec: dict[str, Any]) -> str | None:
        return fit(self, name, spec)

    def is_over(self) -> bool:
        return self._is_over

    def recovers(self, number: int, account: str) -> None:
        self._restarted.add(number)
        self.tell(("recovers", number, account))

    def failed(self, number: int, account: str) -> None:
        self.tell(("failed", number, account))

    def is_restarted(self, number: int) -> bool:
        """Whether a member's workers were lost since it began."""
        return number in self._restarted


def fit(board: PopulationBoard, name: str, spec: dict[str, Any]) -> str | None:
    """Train the members to their end. Returns Ray's account where Tune itself failed.

    `spec`: what ScalingConfig and RunConfig take (`scaling`, `storage_path`, `verbose`, `max_failures`), the `horovod` settings,
    the `members` (number and first options of each), the arguments of `exploits.Exploits` as `search`, and the checkpoint's
    `monitor` and the driver's `node`.
    """
    from ray import tune
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.horovod import HorovodTrainer

    from runner.executors import exploits
    from runner.executors.ray_train import horovod_config
    from runner.executors.receiver import StopWhen

    search = spec["search"]
    common = {
        "board": name,
        "node": spec["node"],
        "every": search["every"],
        "monitor": spec["monitor"],
        "maximise": search["maximise"],
    }
    trainer = HorovodTrainer(
        train_member,
        train_loop_config=common,
        horovod_config=horovod_config(spec["horovod"]),
        scaling_config=ScalingConfig(**spec["scaling"]),
    )
    # No max_concurrent_trials: Tune would not begin the next member before one has ended. Its CPUs are the limit.
    tuner = tune.Tuner(
        trainer,
        param_space={exploits.CONFIG: tune.grid_search([{**common, **each} for each in spec["members"]])},
        tune_config=tune.TuneConfig(
            scheduler=exploits.Exploits(**search), trial_dirname_creator=exploits.folder_of
        ),
        run_config=RunConfig(
            name=name,
            storage_path=spec["storage_path"],
            verbose=spec["verbose"],
            callbacks=[exploits.Failures(board.recovers, board.failed)],
            failure_config=FailureConfig(spec["max_failures"]),
            stop=StopWhen(board.is_over),
        ),
    )
    try:
        tuner.fit()
    except Exception as error:  # noqa: BLE001 (told to the driver)
        return str(error).strip() or type(error).__name__
    return None


def train_member(config: dict[str, Any]) -> None:
    """Runs in a Ray worker: train one member until the next comparison, or to its end."""
    import ray
    from ray import train

    from runner import secrets
    from runner.communicator import Communicator, HorovodCommunicator
    from runner.diagnosis import error_path
    from runner.errors import NOT_FINITE, TrainingError
    from runner.executors.live_rank import TOGETHER, kind_of
    from runner.executors.session import TIMELINE
    from runner.job import enter
    from runner.take_over import Reference, take_over
    from runner.worker import train_loop_per_worker

    board, number, rank = (
        ray.get_actor(config["board"]),
        config["number"],
        train.get_context().get_world_rank(),
    )
    ray.get(board.enlist.remote(ray.get_runtime_context().current_actor))
    is_there, handed = False, []
    while not is_there:
        is_there, handed = ray.get(board.take.remote(number, TAKE_SECONDS))
    open_job, kept, memory = ray.get(handed[0])
    job = secrets.reveal(open_job, kept)
    enter(job)  # what is unpickled below may be of the user's modules
    job = with_options(job, config["options"])
    stood = train.get_checkpoint()
    source = None
    if stood is not None:
        with stood.as_directory() as folder:
            source = Reference.read(Path(folder))
    takes_over = source is not None and source.job != number and source.path is not None
    until = (source.epoch if source else 0) + config["every"]

    def connect() -> Communicator:
        if rank == 0 and takes_over:
            assert source is not None
            rate = job.plan.learning_rate.line()
            facts = {"run_id": job.run_id, "fingerprint": job.fingerprint, "learning_rate": rate}
            take_over(source, job.run_dir / "checkpoints", facts)
        timeline = job.run_dir / TIMELINE if job.experiment.horovod.timeline else None
        return HorovodCommunicator(job.experiment.horovod, job.experiment.trainer.deterministic, timeline)

    def report(values: dict[str, Any]) -> None:
        if rank == 0:
            if "resumed" in values:
                values["options"], values["learning_rate"] = config["options"], job.plan.learning_rate.line()
                values["took_over"] = (source.job, source.epoch) if takes_over and source else None
            ray.get(board.tell.remote(("report", number, values)))

    is_beside_driver = ray.get_runtime_context().get_node_id() == config["node"]
    is_restart = source is not None or ray.get(board.is_restarted.remote(number))
    worst = -math.inf if config["maximise"] else math.inf
    reference, value, error = None, worst, None
    try:
        measured = train_loop_per_worker(
            job,
            ray.get(memory),
            {},
            connect,
            report,
            rank,
            is_restart,
            delivers=not is_beside_driver,
            until=until,
        )
    except TrainingError as raised:
        if NOT_FINITE not in str(raised) or kind_of(raised) != TOGETHER:
            raise
        # It is the worst of all, and goes on from another's checkpoint. At the end it has none to go on from.
        measured, error = {}, str(raised)
        is_over = until * job.plan.schedule_steps_per_epoch >= job.plan.total_steps
        reference = Reference(number, until)
        if is_over:
            measured = None
        else:  # or a process that is lost later would seem to be a consequence
            error_path(job.run_dir, rank).unlink(missing_ok=True)
    if measured is None:
        if rank == 0:
            ray.get(board.tell.remote(("ended", number, error)))
        return
    if measured and math.isfinite(measured[config["monitor"]]):
        value = measured[config["monitor"]]
    with tempfile.TemporaryDirectory() as folder:
        ours = None
        if rank == 0:
            from runner.checkpoint import committed

            reference = reference or Reference.to(committed(job.run_dir / "checkpoints")[-1], number, until)
            reference.write(Path(folder))
            ours = train.Checkpoint.from_directory(folder)
        gc.freeze()  # this process ends soon, without a look for garbage in all of torch and Ray
        train.report({"epoch": until, "value": value}, checkpoint=ours)


def with_options(job: Any, options: dict[str, float]) -> Any:
    """The job with the options that its member has by now."""
    from dataclasses import replace

    from runner import options as changing

    experiment = changing.with_options(job.experiment, options)
    plan = changing.with_its_rate(job.plan, experiment)
    return replace(job, experiment=experiment, plan=plan, searched=tuple(options))
