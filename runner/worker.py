"""train_loop_per_worker: builds everything for one rank and runs the loop. Imports no Ray and no Hydra."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from runner import schema, secrets
from runner.checkpoint_writer import Writer
from runner.commits import Commits, NoCommits
from runner.communicator import Communicator, LostPeerError, device, lost_peer
from runner.diagnosis import FirstFailure
from runner.errors import RunnerError, TrainingError
from runner.examine import examine
from runner.ingest.batches import Ingest, Place, placement
from runner.ingest.dataloader import LoaderIngest
from runner.ingest.observed import ObservedIngest
from runner.ingest.ray_data import RayDataIngest
from runner.ingest.tensors import TensorIngest, example
from runner.job import Job, Memory
from runner.learner import build_learner
from runner.loop import fit, restart
from runner.options import of_optimizer
from runner.process_state import settle
from runner.profile import FOLDER, ProfiledIngest
from runner.rank_log import aside, captured, log_path
from runner.run_folder import locked
from runner.saving import Due, Training, agree, resume, snapshot, write_final
from runner.snapshot import Snapshot
from runner.tracking import NullTracker, Tracker, open_tracker
from runner.tracking.artifacts import fetch_if_it_answers
from runner.train_state import Metrics, TrainState
from runner.watchdog import NullWatchdog, Watchdog, open_watchdog

REPORT_SECONDS = 1.0
NO_COMMITS = NoCommits()

Shards = Mapping[str, Any]
Connect = Callable[[], Communicator]
# Called equally often on every rank; rank 0's values reach the driver.
Report = Callable[[dict[str, Any]], None]
# Asked after each validation, by all ranks, and answered alike: whether to stop here.
IsPruned = Callable[[Metrics], bool]


class Stage(NamedTuple):
    """A part of a training: it pauses after `until` epochs, with a checkpoint."""

    until: int
    pinned: str | None = None  # a checkpoint that others may still need meanwhile


def train_loop_per_worker(
    job: Job,
    memory: Memory,
    shards: Shards,
    connect: Connect,
    report: Report,
    rank: int,
    is_restart: bool = False,
    delivers: bool = True,
    is_pruned: IsPruned = lambda metrics: False,
    stage: Stage | None = None,
    is_captured: bool = True,
    commits: Commits = NO_COMMITS,
) -> Metrics | None:
    """Train on this rank, with its output in logs/rank-N.log (if `is_captured`) and a failure in errors/rank-N.json; `enter` comes first.

    With Ray Data ingest `shards` are this rank's DataIterators by split. `is_restart`: after a lost process. `delivers`: what
    rank 0 has recorded is in MLflow at the end; else the rest is left to the driver, which sees the same folder. Returns the
    metrics at the end of a stage, or where `commits` says that other workers go on; None at the training's end.
    """
    with recorded(job.run_dir, rank, is_captured) as failed:
        return train(
            job, memory, shards, connect(), report, is_restart, failed, delivers, is_pruned, stage, commits
        )


@contextlib.contextmanager
def recorded(run_dir: Path, rank: int, is_captured: bool = True) -> Iterator[FirstFailure]:
    """What a rank prints is in logs/rank-N.log (if `is_captured`) and its first failure, or what it is told of one, in
    errors/rank-N.json."""
    failed = FirstFailure(run_dir, rank)
    with captured(log_path(run_dir, rank)) if is_captured else contextlib.nullcontext():
        try:
            yield failed
        except (Exception, SystemExit) as error:
            failed(error)
            if not is_captured:
                raise  # the trace is the caller's
            if isinstance(lost := lost_peer(error), LostPeerError):
                # A consequence: the trace of the cause is in another rank's log.
                print(f"rank {rank}: {lost}")
            else:
                with aside():
                    traceback.print_exc()
            if isinstance(error, SystemExit):  # ending quietly would look like being killed
                raise TrainingError(f"sys.exit({error.code}) was called") from error
            if secrets.mask(str(error)) != str(error):  # Ray writes it into files of its own
                raise TrainingError(f"{type(error).__name__}: {secrets.mask(str(error))}") from None
            raise


def train(
    job: Job,
    memory: Memory,
    shards: Shards,
    communicator: Communicator,
    report: Report,
    is_restart: bool = False,
    failed: Callable[[BaseException | None], None] = lambda error: None,
    delivers: bool = True,
    is_pruned: IsPruned = lambda metrics: False,
    stage: Stage | None = None,
    commits: Commits = NO_COMMITS,
) -> Metrics | None:
    """Build or resume, fit, and after each epoch and validation: checkpoint, track, report. `failed` is told an error
    before anything is closed. Returns as train_loop_per_worker."""
    experiment, plan, settings = job.experiment, job.plan, job.experiment.checkpoint
    rank, checkpoints = communicator.rank, job.run_dir / "checkpoints"
    state = TrainState()
    with contextlib.ExitStack() as open_now:  # closed in the reverse order
        watchdog = open_now.enter_context(watched(job, communicator, state))
        if rank == 0:  # a killed driver's workers may live on for seconds
            open_now.enter_context(locked(job.run_dir, "rank-0.lock"))
        training, ingest = built(job, memory, shards, communicator, state)
        learner = training.learner
        open_now.enter_context(contextlib.closing(ingest))
        goes_on = job.resumes or is_restart
        if goes_on:
            fetch = uploaded(job)
            resumed = resume(training, checkpoints, communicator, experiment.seed, fetch, commits.found)
            report({"resumed": resumed, "history": training.reports()})
        tracker: Tracker = NullTracker()
        if rank == 0:  # it alone writes checkpoints and metrics
            history = training.measured() if goes_on else None
            opened = open_tracker(experiment.tracking, job.run_dir, job.tracking_uri, job.run_id, history)
            tracker = open_now.enter_context(tracking(opened, delivers))
        writer = Writer(
            checkpoints,
            settings.keep,
            settings.keep_best,
            plan.goal.maximise,
            partial(upload, tracker),
            stage and stage.pinned,
        )
        open_now.enter_context(contextlib.closing(writer))
        open_now.push(lambda kind, error, trace: failed(error))  # at once: to close all that may take seconds
        unreported: list[Metrics] = []
        pruned = paused = is_resized = False
        started = time.time()
        moments = fit(
            state,
            training.stretch,
            plan,
            learner,
            ObservedIngest(ingest, watchdog.beat),
            communicator,
            Due(settings, communicator),
            commits.is_due,
        )
        for metrics, is_due, lrs in moments:
            is_best = bool(metrics) and state.best_step == state.step
            added = training.add(metrics, lrs)
            if metrics:
                training.best = metrics if is_best else training.best
                unreported.append(metrics)
            goes_on = not (state.ended or state.stopped)
            pruned = goes_on and plan.goal.monitor in metrics and is_pruned(metrics)
            paused = goes_on and state.rows == 0 and stage is not None and state.epoch == stage.until
            # Before anything is recorded, of which a second value is not kept.
            is_resized = commits.keep(training, communicator) and goes_on and not pruned
            for measured in added:
                tracker.log_metrics(measured)
            if settings.enabled and (is_due or is_best or pruned or paused):
                save(job, training, metrics, is_best, communicator, writer)
            watchdog.beat()
            if pruned or paused or is_resized:
                break
            # A report waits for the driver, so short epochs share one; the seconds are the same on all ranks.
            if sum(each["seconds/training"] for each in unreported) > REPORT_SECONDS:
                report({"history": unreported})
                unreported = []
        if paused or is_resized:
            communicator.close()
            report({"history": unreported, "best": training.best, "started": started})
            return metrics
        trained = time.time()
        model = learner.evaluated_model()
        trained_to: dict[str, Any] = {"history": unreported, "best": training.best, "started": started}
        trained_to["weights_sha256"] = agree(learner.model, model, communicator)
        trained_to |= {"pruned": pruned, "step": state.step}
        is_shown = not job.best_only or plan.goal.is_better(training.best.get(plan.goal.monitor), job.to_beat)
        if experiment.tracking.plots and is_shown:
            task = experiment.dataset.task
            trained_to["examined"] = examine(model, task, ingest, job.data, communicator, learner.autocast)
        communicator.close()  # nothing is left to agree on; even idle ranks take turns every millisecond
        watchdog.close()
        report(trained_to)  # before the model is stored: the driver draws the plots meanwhile
        writer.close()
        if rank == 0 and experiment.tracking.log_model and is_shown:
            if job.best_only:  # to store a model takes seconds: that is for the one that stays the best
                write_final(model, job.run_dir)
            else:
                tracker.log_model(model, example(memory.splits))
    report({"seconds": {"training": trained - started, "tracking": time.time() - trained}})
    return None


def built(
    job: Job, memory: Memory, shards: Shards, communicator: Communicator, state: TrainState
) -> tuple[Training, Ingest]:
    """A training at its first step, and the batches of this rank. Collective."""
    experiment, plan = job.experiment, job.plan
    settle(experiment, plan)
    place = placement(experiment, device(communicator, plan.resources.use_gpu))
    learner = build_learner(experiment, plan, job.data, communicator, place.device, memory.initial)
    training = Training(plan, learner.owning(of_optimizer(job.searched)), state)
    ingest = open_ingest(job, memory, shards, communicator.rank, place)
    restart(training.stretch, communicator)
    return training, ingest


def watched(
    job: Job, communicator: Communicator, state: TrainState
) -> contextlib.closing[Watchdog | NullWatchdog]:
    """A watchdog that knows where the training stands."""

    def position() -> str:
        most = "at most " if job.plan.learning_rate.is_adaptive else ""
        return f"step {state.step + 1} of {most}{job.plan.total_steps}, epoch {state.epoch + 1}"

    seconds = job.experiment.trainer.watchdog_seconds
    return contextlib.closing(
        open_watchdog(job.run_dir / "stalls", communicator.rank, seconds, communicator, position)
    )


def uploaded(job: Job) -> Callable[[], Iterable[Path]]:
    """The run's checkpoints in the tracking store, where this node has none."""
    if job.tracking_uri is None or job.run_id is None:
        return tuple
    return partial(fetch_if_it_answers, job.tracking_uri, job.run_id, job.run_dir / "fetched")


@contextlib.contextmanager
def tracking(tracker: Tracker, delivers: bool) -> Iterator[Tracker]:
    """Closed in the end. After a failure too, so that what was measured arrives; but then the failure is reported."""
    close = tracker.close if delivers else tracker.leave
    try:
        yield tracker
    except BaseException:
        with contextlib.suppress(RunnerError):
            close()
        raise
    close()


def open_ingest(job: Job, memory: Memory, shards: Shards, rank: int, place: Place) -> Ingest:
    trainer, dataset, seed = job.experiment.trainer, job.experiment.dataset, job.experiment.seed
    splits, sampler = memory.splits, memory.sampler
    ingest: Ingest
    if dataset.ingest is schema.Ingest.ray_data:
        ingest = RayDataIngest(shards, splits, job.plan, seed, rank, place, dataset.shuffle_rows)
    elif dataset.ingest is schema.Ingest.dataloader:
        ingest = LoaderIngest(splits, job.plan, seed, rank, place, dataset.loader_workers, sampler)
    else:
        ingest = TensorIngest(splits, job.plan, seed, rank, place, sampler)
    if trainer.profile_steps and rank == 0:
        ingest = ProfiledIngest(ingest, trainer.profile_steps, job.run_dir / FOLDER / "torch-trace.json")
    return ingest


def save(
    job: Job, training: Training, metrics: Metrics, is_best: bool, communicator: Communicator, writer: Writer
) -> None:
    """Hand a copy of the training to the writer. Collective: it holds the state of every rank."""
    facts = {
        "is_best": is_best,
        "value": metrics.get(job.plan.goal.monitor),
        "metrics": metrics,
        "run_id": job.run_id,
        "fingerprint": job.fingerprint,
        "data": job.data.identity(),
        "learning_rate": job.plan.learning_rate.line(),
    }
    written = snapshot(training, communicator, facts, dict(job.attachments))
    if written is not None:
        writer.put(written)


def upload(tracker: Tracker, path: Path, written: Snapshot) -> None:
    tracker.log_artifact(path, "checkpoints/last")
    if written.facts["is_best"]:
        tracker.log_artifact(path, "checkpoints/best")
