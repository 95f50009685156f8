"""train_loop_per_worker: builds everything for one rank and runs the loop. Imports no Ray and no Hydra."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from runner import checkpoint, schema
from runner.communicator import Communicator, device
from runner.errors import RunnerError, TrainingError, own_line
from runner.examine import examine
from runner.ingest.batches import Ingest, Place
from runner.ingest.dataloader import LoaderIngest
from runner.ingest.ray_data import RayDataIngest
from runner.ingest.rows import Splits
from runner.ingest.tensors import TensorIngest, as_tensors
from runner.learner import Learner, build_learner
from runner.loop import Metrics, TrainState, fit
from runner.parameters import Weights
from runner.plan import DataFacts, Plan
from runner.profile import FOLDER, ProfiledIngest
from runner.rank_log import captured, log_path
from runner.schema import Experiment, Precision
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
    attachments: Mapping[str, bytes]  # files that every checkpoint keeps: the fitted preprocessing


@dataclass(frozen=True)
class Memory:
    """What ranks share by Ray's shared memory: one copy a node."""

    splits: Splits
    initial: Weights | None = None  # what the model starts from


Shards = Mapping[str, Any]
Report = Callable[
    [dict[str, Any]], None
]  # called equally often on every rank; rank 0's values reach the driver
Connect = Callable[[], Communicator]


def train_loop_per_worker(
    job: Job, memory: Memory, shards: Shards, connect: Connect, report: Report, rank: int
) -> None:
    """Train on this rank, with its output in logs/rank-N.log and a failure in errors/rank-N.json.

    With Ray Data ingest `shards` are this rank's DataIterators by split.
    """
    enter(job)
    with captured(log_path(job.run_dir, rank)):
        try:
            train(job, memory, shards, connect(), report)
        except Exception as error:
            record_error(job.run_dir, rank, error)
            traceback.print_exc()
            raise


def train(job: Job, memory: Memory, shards: Shards, communicator: Communicator, report: Report) -> None:
    """Build, fit, and after each epoch and validation: checkpoint, track, report."""
    experiment, plan = job.experiment, job.plan
    is_chief = communicator.rank == 0
    settle(experiment, plan)
    place = placement(experiment, device(communicator, plan.resources.use_gpu))
    learner = build_learner(experiment, plan, job.data, communicator, place.device, memory.initial)
    state = TrainState()
    best: Metrics = {}
    unreported: list[Metrics] = []
    started = time.time()
    with (
        contextlib.closing(open_ingest(job, memory.splits, shards, communicator.rank, place)) as ingest,
        # Only rank 0 writes checkpoints and metrics.
        tracking(
            open_tracker(experiment.tracking, job.tracking_uri if is_chief else None, job.run_id)
        ) as tracker,
    ):
        for metrics in fit(state, plan, learner, ingest, communicator):
            is_best = state.best_step == state.step
            best = metrics if is_best else best
            if is_chief:
                tracker.log_metrics(metrics, step=state.step)
                save(job, state, learner, metrics, is_best, tracker)
            unreported.append(metrics)
            # A report waits for the driver, so short epochs share one; the seconds are the same on all ranks.
            if sum(each["seconds/training"] for each in unreported) > REPORT_SECONDS:
                report({"history": unreported})
                unreported = []
        trained = time.time()
        model = learner.evaluated_model()
        trained_to: dict[str, Any] = {"history": unreported, "best": best, "started": started}
        trained_to["weights_sha256"] = agree(learner.model, model, communicator)
        if experiment.tracking.plots:
            task = experiment.dataset.task
            trained_to["examined"] = examine(model, task, ingest, job.data, communicator, learner.autocast)
        communicator.close()  # nothing is left to agree on; even idle ranks take turns every millisecond
        report(trained_to)  # before the model is stored: the driver draws the plots meanwhile
        if is_chief and experiment.tracking.log_model:
            tracker.log_model(model, place(example(memory.splits)).cpu())
    report({"seconds": {"training": trained - started, "tracking": time.time() - trained}})


@contextlib.contextmanager
def tracking(tracker: Tracker) -> Iterator[Tracker]:
    """Closed in the end. After a failure too, so that what was measured is kept; but then the failure is reported."""
    try:
        yield tracker
    except BaseException:
        with contextlib.suppress(RunnerError):
            tracker.close()
        raise
    tracker.close()


def example(splits: Splits) -> Tensor:
    """Inputs of a few rows, as the model takes them."""
    inputs, _ = as_tensors(splits["val"].read(0, 1))
    return inputs.repeat_interleave(MODEL_EXAMPLE_ROWS, dim=0)


def placement(experiment: Experiment, on: torch.device) -> Place:
    return Place(on, torch.float64 if experiment.trainer.precision is Precision.float64 else None)


def open_ingest(job: Job, splits: Splits, shards: Shards, rank: int, place: Place) -> Ingest:
    trainer, dataset, seed = job.experiment.trainer, job.experiment.dataset, job.experiment.seed
    ingest: Ingest
    if dataset.ingest is schema.Ingest.ray_data:
        ingest = RayDataIngest(shards, splits, job.plan, seed, rank, place, dataset.shuffle_rows)
    elif dataset.ingest is schema.Ingest.dataloader:
        ingest = LoaderIngest(splits, job.plan, seed, rank, place, dataset.loader_workers)
    else:
        ingest = TensorIngest(splits, job.plan, seed, rank, place)
    if trainer.profile_steps and rank == 0:
        ingest = ProfiledIngest(ingest, trainer.profile_steps, job.run_dir / FOLDER / "torch-trace.json")
    return ingest


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


def save(
    job: Job, state: TrainState, learner: Learner, metrics: Metrics, is_best: bool, tracker: Tracker
) -> None:
    """Commit a checkpoint of this step when it is due or the best; upload it as last, best or both."""
    settings, plan = job.experiment.checkpoint, job.plan
    is_last = state.stopped or state.step == plan.total_steps
    is_due = is_last or state.step % (settings.every_epochs * plan.steps_per_epoch) == 0
    if not settings.enabled or not (is_due or is_best):
        return
    root = job.run_dir / "checkpoints"
    path = checkpoint.commit(
        root,
        f"step-{state.step:08d}",
        learner.evaluated_model().state_dict(),
        learner.state_dict(),
        {
            "epoch": state.epoch,
            "step": state.step,
            "best": state.best,
            "is_best": is_best,
            "num_workers": job.plan.num_workers,
            "metrics": metrics,
            "run_id": job.run_id,
        },
        job.attachments,
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


def agree(model: nn.Module, evaluated: nn.Module, communicator: Communicator) -> str:
    """The evaluated weights' sha256 (rank 0's); raises TrainingError when the ranks' parameters differ."""
    parameters = checkpoint.weights_sha256(dict(model.named_parameters()))
    digests = communicator.allgather(torch.tensor(list(bytes.fromhex(parameters))))
    if not (digests == digests[0]).all():
        raise TrainingError(
            "the ranks ended with different weights: is a parameter changed outside the optimizer?"
        )
    return checkpoint.weights_sha256(evaluated.state_dict())


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
                "line": None if isinstance(error, RunnerError) else own_line(error),  # ours say what is wrong
                "traceback": "".join(traceback.format_exception(error)),
            }
        )
    )
