"""Train one experiment: prepare, launch, record. The order of things is the story of a run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import interrupts
from runner.executors import choice, ray_cluster
from runner.job import Received, Restarted
from runner.prepare import Prepared, prepare
from runner.rank_log import Follower, log_path, mask_logs
from runner.recording import bounded, change_config, close_record, ended, how_to_go_on, look_back, open_run
from runner.report.console import Screen
from runner.request import Request
from runner.run_folder import Result, locked, take, write_result
from runner.tracking import RunRecord

if TYPE_CHECKING:
    from runner.job import Job, Memory
    from runner.plan import Plan

CREATING_SECONDS = 5.0  # for a store's first tables
DONE = ("FINISHED", "PRUNED")  # of a training that ended as it was to
DrawsLater = Callable[[Callable[[], None]], None]
Execute = Callable[["Job", "Memory", Received, Restarted], None]


@dataclass
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.time)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        before = time.time()
        yield
        self.seconds[name] = time.time() - before


def train(request: Request, screen: Screen) -> Result:
    """Run one experiment to its end and return what result.json says. Raises RunnerError or KeyboardInterrupt."""
    clock = Clock()
    if request.experiment.dry_run:
        with clock.phase("check"):
            prepared = prepare(request)
        return rehearse(request, prepared, screen, clock)
    with (locked if request.resumes is None else take)(request.run_dir):
        with clock.phase("check"):
            prepared = prepare(request)
        record = start(request, prepared, screen, clock)
        return launch(request, prepared, record, screen, clock, choice.run_of(request.experiment))


def train_job(
    request: Request, prepared: Prepared, screen: Screen, execute: Execute, draws_later: DrawsLater | None
) -> Result:
    """A job of a sweep, which has started Ray: the same, by what executes it; `draws_later` is given what draws its plots."""
    clock = Clock()
    with (locked if request.resumes is None else take)(request.run_dir):
        with clock.phase("start"):
            record = open_run(request, prepared.plan, screen.line, threading.Event())
        return launch(request, prepared, record, screen, clock, execute, draws_later)


def start(request: Request, prepared: Prepared, screen: Screen, clock: Clock) -> RunRecord:
    """Ray, where it is needed, and the MLflow run, side by side."""
    from runner.executors import ray_train

    uses_ray = choice.uses_ray(request.experiment)
    with clock.phase("start"):
        # Seconds each: creating the store the first time, importing Ray Train, starting Ray. Side by side.
        background = ThreadPoolExecutor(2)
        stopped = threading.Event()
        opening = background.submit(open_run, request, prepared.plan, screen.line, stopped)
        if choice.uses_ray_train(request.experiment):
            background.submit(ray_train.preload, choice.uses_train_v2(request.experiment))
        try:
            if uses_ray and prepared.address is None:
                ray_cluster.start(
                    None, prepared.machine.cpus, request.import_roots, prepared.experiment.verbose
                )
            record = opening.result()
            look_back(request.outputs, screen.line)
        except BaseException as error:
            stopped.set()
            status = "FAILED"
            if isinstance(error, KeyboardInterrupt):
                interrupts.ending()
                status = "KILLED"
            background.shutdown(wait=False, cancel_futures=True)
            bounded(lambda: ended(opening.result(), status), CREATING_SECONDS)
            raise
        background.shutdown()
    return record


def rehearse(request: Request, prepared: Prepared, screen: Screen, clock: Clock) -> Result:
    """dry_run=true."""
    from runner.dry_run import dry_run

    screen.banner(request.run_dir, prepared.plan, prepared.notes)
    with clock.phase("dry_run"):
        metrics = dry_run(prepared, screen)
    return {"run_id": None, "status": "DRY_RUN", "metrics": metrics, "seconds": clock.seconds}


def launch(
    request: Request,
    prepared: Prepared,
    record: RunRecord,
    screen: Screen,
    clock: Clock,
    execute: Execute,
    draws_later: DrawsLater | None = None,
) -> Result:
    """Hand the job to the executor; whatever happens, the run gets its true status and result.json."""
    from runner import retention
    from runner.job import Job, Memory

    plan, run_dir = prepared.plan, request.run_dir
    job = Job(
        experiment=prepared.experiment,
        plan=plan,
        data=prepared.data.facts,
        run_dir=run_dir,
        run_id=record.run_id,
        tracking_uri=record.uri,
        working_dir=Path.cwd(),
        import_roots=request.import_roots,
        attachments=attachments(prepared.data.preprocessing),
        fingerprint=request.fingerprint,
        resumes=request.resumes is not None,
    )
    result: Result = {
        "run_id": record.run_id,
        "status": "FAILED",
        "metrics": {},
        "best": {},
        "weights_sha256": None,
        "restarts": 0,
    }
    history: list[dict[str, float]] = []
    drawing = ThreadPoolExecutor(1)
    launched = time.time()

    def restarted(count: int, reason: str) -> None:
        result["restarts"] = count
        line = f"restart {count} of {prepared.experiment.trainer.max_failures}: {reason}"
        screen.line(line)
        record.log_event(line)

    def received(values: dict[str, Any]) -> None:
        if "resumed" in values:
            name = values.pop("resumed")
            line = f"goes on from {name}" if name else "starts again: there was no checkpoint yet"
            if line := values.pop("event", line):  # a member of a population says more, or nothing
                screen.line(line)
                record.log_event(line)
            if changed := values.pop("changed", None):
                change_config(record, run_dir, changed)
            history[:] = values.pop("history")
            result["metrics"] = history[-1] if history else {}
        elif line := values.pop("event", None):
            screen.line(line)
            record.log_event(line)
        for metrics in values.pop("history", ()):
            history.append(metrics)
            result["metrics"] = metrics
            screen.measured(metrics, plan)
        if "started" in values:
            clock.seconds["launch"] = values.pop("started") - launched
        if "examined" in values:  # drawn while rank 0 stores the model and Ray ends the workers
            drawn = partial(draw, run_dir, list(history), values.pop("examined"), screen)
            draws_later(drawn) if draws_later else drawing.submit(drawn)
        clock.seconds |= values.pop("seconds", {})
        result.update(values)

    follower = None
    try:
        screen.banner(run_dir, plan, prepared.notes, record.run_id, record.uri)
        if prepared.change is not None:
            record.log_event(prepared.change)
        screen.start(plan.total_steps)
        follower = Follower(log_path(run_dir, 0), screen.line)
        memory = Memory(prepared.data.splits, prepared.initial, prepared.data.sampler)
        execute(job, memory, received, restarted)
        result["status"] = "FINISHED"
        if result.pop("pruned", False):
            epochs = plan.total_steps / plan.steps_per_epoch
            said = f"after {result['metrics']['epoch']:.4g} of {epochs:.4g} epochs"
            result |= {"status": "PRUNED", "pruned": said}
    except KeyboardInterrupt as stop:
        interrupts.ending()
        result |= {"status": "KILLED", "error": str(stop) or "interrupted by Ctrl-C"}
        raise
    except Exception as error:
        result["error"] = str(error)
        raise
    finally:
        is_done = result["status"] in DONE
        drawing.shutdown(wait=is_done)
        if follower is not None:
            follower.close()
        screen.stop()
        clock.seconds["total"] = time.time() - clock.started
        result["seconds"] = {phase: round(value, 3) for phase, value in clock.seconds.items()}
        result["run_id"] = record.run_id  # a store that did not answer at the start may have done since
        mask_logs(run_dir)
        write_result(run_dir, result)
        describe_result(record, result, plan)
        close_record(record, run_dir, result["status"], result.get("error"), screen.line)
        if not is_done:
            screen.line(how_to_go_on(record.run_id, run_dir))
    best = retention.best(run_dir / "checkpoints", plan.goal.maximise)
    screen.finished(result, record.uri, best)
    return result


def describe_result(record: RunRecord, result: Result, plan: Plan) -> None:
    """What a run came to, where runs are compared with each other."""
    tags = {"runner.status": result["status"]}
    if result["weights_sha256"]:
        tags["runner.weights_sha256"] = result["weights_sha256"]
    if result["status"] == "PRUNED":
        tags["runner.pruned"] = result["pruned"]
    if "degraded" in result:
        tags["runner.degraded"] = result["degraded"]
    record.set_tags(tags)
    if result["status"] not in DONE:
        return  # what it came to is said when it has gone on
    shown = {key for key in result["best"] if key.startswith("val/") or key == plan.goal.monitor}
    best = {f"best/{key}": result["best"][key] for key in sorted(shown)}
    record.log_metrics({**best, "seconds/total": result["seconds"]["total"]}, result["step"])


def draw(run_dir: Path, history: list[dict[str, float]], examined: dict[str, Any], screen: Screen) -> None:
    """Plots are worth a line when they fail, not a run."""
    from runner.report import plots

    try:
        plots.draw(run_dir / "plots", history, examined, run_dir.name)
    except Exception as error:  # noqa: BLE001 (matplotlib raises many types)
        screen.line(f"the plots could not be drawn: {type(error).__name__}: {error}")


def attachments(preprocessing: Any) -> dict[str, bytes]:
    """What the dataset fitted, as a file for every checkpoint: an estimator by skops (no pickle), else JSON."""
    if preprocessing is None:
        return {}
    if isinstance(preprocessing, dict):
        return {"preprocessing.json": json.dumps(preprocessing, ensure_ascii=False).encode()}
    import skops.io

    return {"preprocessing.skops": skops.io.dumps(preprocessing)}
