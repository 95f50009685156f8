"""Train one experiment: check, plan, launch, record. The order of things is the story of a run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner import config, preflight, provenance
from runner.errors import ConfigError, nearest, refuse
from runner.executors import ray_cluster
from runner.plan import DataFacts, Machine, Plan, make_plan, plan_resources
from runner.rank_log import Follower, log_path
from runner.report.console import Screen, error_line, relative
from runner.schema import Experiment
from runner.tracking import RunRecord, check_store, open_record

INTERRUPTED_SECONDS = 3.0
Result = dict[str, Any]  # what result.json holds


@dataclass(frozen=True)
class Request:
    """One job, as Hydra composed it."""

    experiment: Experiment
    yaml: str  # interpolations unresolved
    values: dict[str, Any]  # interpolations resolved
    overrides: tuple[str, ...]
    run_dir: Path
    outputs: Path
    import_roots: tuple[str, ...]
    parent_run_id: str | None = None


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
    experiment, clock = request.experiment, Clock()
    if (request.run_dir / "result.json").exists():
        raise ConfigError(
            f"hydra.run.dir={relative(request.run_dir)}: holds a run already; type another folder"
        )
    with clock.phase("check"):
        address = None if experiment.dry_run else ray_cluster.cluster_address(experiment.scaling.address)
        machine = find_machine(experiment, address, request.import_roots)
        resources = plan_resources(experiment, machine)
        preflight.check_resources(resources, machine)
        config.check_targets(experiment)
        check_monitor(experiment)
        if not experiment.dry_run:
            check_store(experiment.tracking, request.outputs)
        from runner.ingest import arrays  # numpy, and with the dataset's own imports the slow part

        splits = arrays.load(experiment.dataset)
        data = arrays.describe(splits, experiment.dataset.task)
        plan = make_plan(experiment, data, resources)
    if experiment.dry_run:
        return dry_run(request, plan, data, splits, screen, clock)
    from runner.executors import horovod_trainer

    with clock.phase("start"):
        # Seconds each: creating the store the first time, importing Ray Train, starting Ray. Side by side.
        background = ThreadPoolExecutor(2)
        opening = background.submit(open_run, request, plan)
        background.submit(horovod_trainer.preload)
        try:
            if address is None:
                ray_cluster.start(None, machine.cpus, request.import_roots, experiment.verbose)
            record = opening.result()
        except BaseException as error:
            background.shutdown(wait=False, cancel_futures=True)
            status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
            bounded(lambda: opening.result().finish(status))
            raise
        background.shutdown()
    return launch(request, plan, data, splits, record, screen, clock)


def check_monitor(experiment: Experiment) -> None:
    from runner.objective import metric_names

    monitor, known = experiment.checkpoint.monitor, metric_names(experiment.dataset.task)
    if monitor not in known:
        close = nearest(monitor, known) or known[1]
        allowed = f"a {experiment.dataset.task.value} measures {', '.join(known)}"
        raise refuse("checkpoint.monitor", monitor, allowed, f"checkpoint.monitor={close}")


def find_machine(experiment: Experiment, address: str | None, import_roots: tuple[str, ...]) -> Machine:
    """This machine, or the cluster at `address`, which is joined and whose nodes are checked."""
    if address is None:
        return preflight.this_machine(experiment.scaling.use_gpu)
    ray_cluster.start(address, 0, import_roots, experiment.verbose)
    ray_cluster.check_nodes()
    return ray_cluster.cluster_machine(preflight.horovod_has_nccl())


def open_run(request: Request, plan: Plan) -> RunRecord:
    """Create the MLflow run and write down everything that is known before it starts."""
    tracking = request.experiment.tracking
    record = open_record(
        tracking, request.outputs, tracking.run_name or request.run_dir.name, request.parent_run_id
    )
    try:
        describe_run(record, request, plan)
    except BaseException:
        record.finish("FAILED")
        raise
    return record


def describe_run(record: RunRecord, request: Request, plan: Plan) -> None:
    """Parameters, config, code version, environment and plan."""
    commit, diff = provenance.git_state(Path.cwd())
    tags = {"mlflow.source.name": "python -m runner", "runner.run_dir": str(request.run_dir)}
    record.set_tags({**tags, "mlflow.source.git.commit": commit} if commit else tags)
    record.log_params({**dict(config.flatten(request.values)), **plan.flat()})
    record.log_text(request.yaml, "config.yaml")
    record.log_text("\n".join(request.overrides) + "\n", "overrides.txt")
    record.log_text("\n".join(plan.lines()) + "\n", "plan.txt")
    record.log_text(provenance.environment(), "environment.json")
    if diff:
        record.log_text(diff, "git.diff")


def launch(
    request: Request,
    plan: Plan,
    data: DataFacts,
    splits: Any,
    record: RunRecord,
    screen: Screen,
    clock: Clock,
) -> Result:
    """Hand the job to the executor; whatever happens, the run gets its true status and result.json."""
    from runner.executors import horovod_trainer
    from runner.worker import Job, best_checkpoint

    job = Job(
        experiment=request.experiment,
        plan=plan,
        data=data,
        run_dir=request.run_dir,
        run_id=record.run_id,
        tracking_uri=record.uri,
        working_dir=Path.cwd(),
        import_roots=request.import_roots,
    )
    result: Result = {
        "run_id": record.run_id,
        "status": "FAILED",
        "metrics": {},
        "best": {},
        "weights_sha256": None,
    }
    launched = time.time()

    def received(values: dict[str, Any]) -> None:
        for metrics in values.pop("epochs"):
            result["metrics"] = metrics
            screen.epoch(metrics, plan.epochs)
        if "started" in values:
            clock.seconds["launch"] = values.pop("started") - launched
            clock.seconds |= values.pop("seconds")
        result.update(values)

    screen.banner(request.run_dir.name, plan, record.run_id, record.uri, request.run_dir)
    screen.start(plan.epochs)
    follower = Follower(log_path(request.run_dir, 0), screen.line)
    try:
        horovod_trainer.run(job, splits, received)
        result["status"] = "FINISHED"
    except KeyboardInterrupt as stop:
        result |= {"status": "KILLED", "error": str(stop) or "interrupted by Ctrl-C"}
        raise
    except Exception as error:
        result["error"] = str(error)
        raise
    finally:
        follower.close()
        screen.stop()
        clock.seconds["total"] = time.time() - clock.started
        result["seconds"] = {phase: round(value, 3) for phase, value in clock.seconds.items()}
        write_result(request.run_dir, result)
        close_record(record, request.run_dir, result["status"])
    best = best_checkpoint(request.run_dir / "checkpoints")
    screen.finished(result, record.uri, best)
    return result


def close_record(record: RunRecord, run_dir: Path, status: str) -> None:
    """Logs, result and final status; what cannot be stored is said and does not hide how the training ended."""

    def store() -> None:
        record.finish(status)
        record.log_artifact(run_dir / "logs")
        record.log_artifact(run_dir / "result.json")

    problem = bounded(store) if status == "KILLED" else _attempt(store)
    if problem:
        error_line(
            f"tracking.uri={record.uri}: run {record.run_id} is {status}, but MLflow did not take it: {problem}"
        )


def bounded(action: Callable[[], None], seconds: float = INTERRUPTED_SECONDS) -> str | None:
    """Do `action` for at most `seconds` (an interrupted user waits); the first line of what went wrong, if anything."""
    outcome: list[str | None] = ["no answer"]

    def attempt() -> None:
        outcome[0] = _attempt(action)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


def _attempt(action: Callable[[], None]) -> str | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 (MLflow's clients raise many types)
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None


def dry_run(
    request: Request, plan: Plan, data: DataFacts, splits: Any, screen: Screen, clock: Clock
) -> Result:
    """Build everything and take one batch forward and backward, in this process: no Ray, no Horovod, no MLflow."""
    from dataclasses import replace

    import torch

    from runner import worker
    from runner.communicator import SingleProcess
    from runner.ingest.tensors import TensorIngest

    screen.banner(request.run_dir.name, plan, None, None, request.run_dir)
    alone = replace(plan, resources=replace(plan.resources, num_workers=1))
    with clock.phase("dry_run"):
        worker.settle(request.experiment, plan)
        learner = worker.build_learner(request.experiment, plan, data, SingleProcess(), torch.device("cpu"))
        ingest = TensorIngest(splits, alone, request.experiment.seed, 0, torch.device("cpu"))
        batch = next(ingest.steps(0))[0]
        rows = min(len(batch.inputs), plan.batch_size)
        try:
            outputs = learner.model(batch.inputs[:rows])
            loss = learner.objective.row_losses(outputs, batch.targets[:rows]).mean()
            loss.backward()
        except Exception as error:
            inputs, targets = tuple(batch.inputs[:rows].shape), tuple(batch.targets[:rows].shape)
            raise ConfigError(
                f"model={request.experiment.model['_target_']}: a batch with inputs {inputs} and targets {targets} "
                f"failed with {type(error).__name__}: {' '.join(str(error).split())} ({worker.own_line(error)})"
            ) from error
    screen.line(
        f"dry run: {rows} rows {tuple(batch.inputs.shape[1:])} → {tuple(outputs.shape[1:])}, "
        f"loss {loss.item():.4g}, {sum(p.numel() for p in learner.model.parameters()):,} parameters; nothing was launched"
    )
    return {
        "run_id": None,
        "status": "DRY_RUN",
        "metrics": {"train/loss": loss.item()},
        "seconds": clock.seconds,
    }


def write_result(run_dir: Path, result: Result) -> None:
    """result.json, whole or not at all."""
    run_dir.mkdir(parents=True, exist_ok=True)
    temporary = run_dir / ".result.json"
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    temporary.replace(run_dir / "result.json")
