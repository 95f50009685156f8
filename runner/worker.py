"""train_loop_per_worker: builds everything for one rank and runs the loop. Imports no Ray and no Hydra."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from runner import build, checkpoint, schema
from runner.communicator import Communicator, device
from runner.errors import RunnerError, TrainingError
from runner.ingest.arrays import Splits
from runner.ingest.batches import Ingest
from runner.ingest.ray_data import RayDataIngest
from runner.ingest.tensors import TensorIngest
from runner.loop import Learner, TrainState, fit
from runner.objective import objective
from runner.plan import DataFacts, Plan
from runner.rank_log import captured, log_path
from runner.schedule import Schedule
from runner.schema import Experiment, Mode
from runner.tracking import Tracker, open_tracker

REPORT_SECONDS = 1.0
MODEL_EXAMPLE_ROWS = 2  # with a single row torch.export would fix the batch size at 1


@dataclass(frozen=True)
class Job:
    """All that a rank needs besides the data; plain and picklable."""

    experiment: Experiment
    plan: Plan
    data: DataFacts
    run_dir: Path
    run_id: str | None
    tracking_uri: str | None
    working_dir: Path
    import_roots: tuple[str, ...]


Report = Callable[
    [dict[str, Any]], None
]  # called equally often on every rank; rank 0's values reach the driver
Connect = Callable[[], Communicator]


def train_loop_per_worker(
    job: Job, splits: Splits, shard: Any, connect: Connect, report: Report, rank: int
) -> None:
    """Train on this rank, with its output in logs/rank-N.log and a failure in errors/rank-N.json.

    `splits` holds the arrays in memory; with Ray Data ingest `shard` is this rank's DataIterator over the training
    rows, which are then not in `splits`.
    """
    enter(job)
    with captured(log_path(job.run_dir, rank)):
        try:
            train(job, splits, shard, connect(), report)
        except Exception as error:
            record_error(job.run_dir, rank, error)
            traceback.print_exc()
            raise


def train(job: Job, splits: Splits, shard: Any, communicator: Communicator, report: Report) -> None:
    """Build, fit, and after each epoch: checkpoint, track, report."""
    experiment, plan = job.experiment, job.plan
    is_chief = communicator.rank == 0
    settle(experiment, plan)
    on = device(communicator, plan.resources.use_gpu)
    learner = build_learner(experiment, plan, job.data, communicator, on)
    ingest = open_ingest(job, splits, shard, communicator.rank, on)
    state = TrainState()
    # Only rank 0 writes checkpoints and metrics.
    tracker = open_tracker(experiment.tracking, job.tracking_uri if is_chief else None, job.run_id)
    best: dict[str, float] = {}
    unreported: list[dict[str, float]] = []
    started = time.time()
    try:
        for metrics in fit(state, plan, learner, ingest, communicator):
            selected = select(state, metrics, experiment)
            best = metrics if selected else best
            if is_chief:
                tracker.log_metrics(metrics, step=state.epoch)
                save(job, state, learner, metrics, selected, tracker)
            unreported.append(metrics)
            # A report waits for the driver, so short epochs share one; the seconds are the same on all ranks.
            if sum(epoch["seconds/epoch"] for epoch in unreported) > REPORT_SECONDS:
                report({"epochs": unreported})
                unreported = []
    except Exception:
        with contextlib.suppress(
            RunnerError
        ):  # what was measured is kept; the failure itself is what is reported
            tracker.close()
        raise
    trained = time.time()
    digest = agree(learner.model, communicator)
    if is_chief and experiment.tracking.log_model:
        tracker.log_model(learner.model, torch.from_numpy(splits["val"][0][:MODEL_EXAMPLE_ROWS].copy()))
    tracker.close()
    seconds = {"training": trained - started, "tracking": time.time() - trained}
    report(
        {"epochs": unreported, "weights_sha256": digest, "best": best, "seconds": seconds, "started": started}
    )
    communicator.close()


def open_ingest(job: Job, splits: Splits, shard: Any, rank: int, on: torch.device) -> Ingest:
    if job.experiment.dataset.ingest is schema.Ingest.ray_data:
        return RayDataIngest(shard, splits["val"], job.plan, job.experiment.seed, rank, on)
    return TensorIngest(splits, job.plan, job.experiment.seed, rank, on)


def enter(job: Job) -> None:
    """The driver's working directory and import roots, on this rank."""
    for root in reversed(job.import_roots):
        if root not in sys.path:
            sys.path.insert(0, root)
    if job.working_dir.is_dir():
        os.chdir(job.working_dir)


def settle(experiment: Experiment, plan: Plan) -> None:
    """Threads, determinism and random numbers, before anything is built."""
    torch.set_num_threads(plan.resources.threads)  # Ray sets OMP_NUM_THREADS, which torch has read by now
    if experiment.trainer.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(experiment.trainer.deterministic)
    torch.backends.cudnn.benchmark = not experiment.trainer.deterministic
    torch.manual_seed(experiment.seed)  # the same on all ranks while the model is built


def build_learner(
    experiment: Experiment, plan: Plan, data: DataFacts, communicator: Communicator, on: torch.device
) -> Learner:
    """Model, optimizer and schedule, equal on all ranks and with the scaled LR."""
    model: nn.Module = build.build(experiment.model, facts=data.for_model()).to(on)
    communicator.broadcast_model(model)
    torch.manual_seed(experiment.seed + 1 + communicator.rank)  # dropout differs between ranks from here on
    optimizer = build.build(
        {**experiment.optimizer.target, "lr": plan.learning_rate.scaled}, model.parameters()
    )
    optimizer = communicator.distribute(optimizer, model, plan.accumulation_steps)
    scheduler = build.build(
        experiment.scheduler.target, optimizer, facts=plan.for_scheduler(experiment.scheduler)
    )
    schedule = Schedule(
        optimizer,
        scheduler,
        experiment.scheduler.interval,
        plan.warmup_steps,
        plan.learning_rate.warmup_start,
        plan.steps_per_epoch,
    )
    return Learner(model, optimizer, schedule, objective(experiment.dataset.task))


def select(state: TrainState, metrics: dict[str, float], experiment: Experiment) -> bool:
    """Whether this epoch is the best so far by the monitored metric."""
    sign = 1 if experiment.checkpoint.mode is Mode.max else -1
    value = metrics[experiment.checkpoint.monitor]
    if math.isnan(value) or (state.best is not None and not sign * value > sign * state.best):
        return False
    state.best = value
    return True


def save(
    job: Job, state: TrainState, learner: Learner, metrics: dict[str, float], is_best: bool, tracker: Tracker
) -> None:
    """Commit a checkpoint of this epoch when it is due or the best; upload it as last, best or both."""
    settings = job.experiment.checkpoint
    is_due = state.epoch % settings.every_epochs == 0 or state.epoch == job.plan.epochs
    if not settings.enabled or not (is_due or is_best):
        return
    root = job.run_dir / "checkpoints"
    path = checkpoint.commit(
        root,
        f"epoch-{state.epoch:04d}",
        learner.model.state_dict(),
        {"optimizer": learner.optimizer.state_dict(), "schedule": learner.schedule.state_dict()},
        {
            "epoch": state.epoch,
            "step": state.step,
            "best": state.best,
            "is_best": is_best,
            "num_workers": job.plan.num_workers,
            "metrics": metrics,
            "run_id": job.run_id,
        },
    )
    tracker.log_artifact(path, "checkpoints/last")
    if is_best:
        tracker.log_artifact(path, "checkpoints/best")
    checkpoint.prune(root, settings.keep, best_checkpoint(root))


def best_checkpoint(root: Path) -> Path | None:
    """The newest checkpoint that was the best when it was written."""
    for path in reversed(checkpoint.committed(root)):
        manifest = path / checkpoint.MANIFEST  # gone where a deletion was cut short
        if manifest.exists() and json.loads(manifest.read_text())["is_best"]:
            return path
    return None


def agree(model: nn.Module, communicator: Communicator) -> str:
    """The weights' sha256 (rank 0's); raises TrainingError when the ranks' parameters differ."""
    parameters = checkpoint.weights_sha256(dict(model.named_parameters()))
    digests = communicator.allgather(torch.tensor(list(bytes.fromhex(parameters))))
    if not (digests == digests[0]).all():
        raise TrainingError(
            "the ranks ended with different weights: is a parameter changed outside the optimizer?"
        )
    return checkpoint.weights_sha256(model.state_dict())


def own_line(error: BaseException) -> str:
    """file:line of the innermost frame that is neither runner's nor an installed package's."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and not frame.filename.startswith(here)
    ]
    frame = (own or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}"


def record_error(run_dir: Path, rank: int, error: Exception) -> None:
    """Each rank writes its own failure: the driver reports the earliest, which is the cause of the others."""
    path = run_dir / "errors" / f"rank-{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "time": time.time(),
                "rank": rank,
                "host": socket.gethostname(),
                "type": type(error).__name__,
                "message": str(error),
                "line": own_line(error),
                "traceback": "".join(traceback.format_exception(error)),
            }
        )
    )
