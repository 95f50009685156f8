"""A population from the inside: one Tuner over HorovodTrainer, whose trials are the members.

Use it for search=pbt. Tune ends a member's workers at each comparison and starts new ones, so it is for trainings of
minutes. Imports no torch at the top: the processes around the ranks need none.
"""

from __future__ import annotations

import gc
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.executors.board import Board

if TYPE_CHECKING:
    from runner.job import Job, Memory
    from runner.take_over import Reference


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
    the `members` (number and first options of each), the arguments of `exploits.Exploits` as `search`, and the driver's
    `node`.
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

    from runner.communicator import Communicator
    from runner.diagnosis import error_path
    from runner.errors import NOT_FINITE, TrainingError
    from runner.executors.joined import joined
    from runner.executors.live_rank import TOGETHER, kind_of
    from runner.take_over import take_over
    from runner.worker import Stage, train_loop_per_worker

    board, number, rank = (
        ray.get_actor(config["board"]),
        config["number"],
        train.get_context().get_world_rank(),
    )
    ray.get(board.enlist.remote(ray.get_runtime_context().current_actor))
    job, memory = member_job(board, number, config["options"])
    source = stood()
    takes_over = source is not None and source.job != number and source.path is not None
    until = (source.epoch if source else 0) + config["every"]
    # Who takes it over may begin only when this member has trained for long.
    stage = Stage(until, pinned=Path(source.path).name if source and source.path else None)

    def connect() -> Communicator:
        if rank == 0 and takes_over:
            assert source is not None
            rate = job.plan.learning_rate.line()
            facts = {"run_id": job.run_id, "fingerprint": job.fingerprint, "learning_rate": rate}
            take_over(source, job.run_dir / "checkpoints", facts)
        return joined(job)

    def report(values: dict[str, Any]) -> None:
        if rank == 0:
            if "resumed" in values:
                values["options"], values["learning_rate"] = config["options"], job.plan.learning_rate.line()
                values["took_over"] = (source.job, source.epoch) if takes_over and source else None
            ray.get(board.tell.remote(("report", number, values)))

    is_restart = source is not None or ray.get(board.is_restarted.remote(number))
    delivers = ray.get_runtime_context().get_node_id() != config["node"]
    error = None
    try:
        measured = train_loop_per_worker(
            job, memory, {}, connect, report, rank, is_restart, delivers=delivers, stage=stage
        )
    except TrainingError as raised:
        if NOT_FINITE not in str(raised) or kind_of(raised) != TOGETHER:
            raise
        error = str(raised)
        is_over = until * job.plan.schedule_steps_per_epoch >= job.plan.total_steps
        measured = None if is_over else {}
        if not is_over:  # a process that is lost later would seem to be a consequence
            error_path(job.run_dir, rank).unlink(missing_ok=True)
    if measured is not None:
        compare(job, number, until, measured if error is None else None)
    elif rank == 0:
        ray.get(board.tell.remote(("ended", number, error)))


def member_job(board: Any, number: int, options: dict[str, float]) -> tuple[Job, Memory]:
    """The member's job, with the options that it has by now, and what it shares with the others."""
    import ray

    from runner import secrets
    from runner.executors.live_rank import taken
    from runner.job import enter
    from runner.options import with_its_rate, with_options

    open_job, kept, memory = taken(board, number)
    job: Job = secrets.reveal(open_job, kept)
    enter(job)  # what is unpickled below may be of the user's modules
    experiment = with_options(job.experiment, options)
    plan = with_its_rate(job.plan, experiment)
    return replace(job, experiment=experiment, plan=plan, searched=tuple(options)), ray.get(memory)


def stood() -> Reference | None:
    """The checkpoint that Tune has this member go on from: its own, another's, or none yet."""
    from ray import train

    from runner.take_over import Reference

    found = train.get_checkpoint()
    if found is None:
        return None
    with found.as_directory() as folder:
        return Reference.read(Path(folder))


def compare(job: Job, number: int, epoch: int, metrics: dict[str, float] | None) -> None:
    """Tell Tune where the member stands, which then ends this process. No metrics: it has diverged, which is the worst of all,
    and has nothing to go on from but another's checkpoint."""
    from ray import train

    from runner.checkpoint import committed
    from runner.take_over import Reference

    value = metrics[job.plan.goal.monitor] if metrics else math.nan
    if not math.isfinite(value):  # Tune would leave NaN out of the comparison
        value = -math.inf if job.plan.goal.maximise else math.inf
    gc.freeze()  # no look for garbage in all of torch and Ray
    with tempfile.TemporaryDirectory() as folder:
        ours = None
        if train.get_context().get_world_rank() == 0:
            reference = Reference(number, epoch)
            if metrics:
                reference = Reference.to(committed(job.run_dir / "checkpoints")[-1], number, epoch)
            reference.write(Path(folder))
            ours = train.Checkpoint.from_directory(folder)
        train.report({"epoch": epoch, "value": value}, checkpoint=ours)
