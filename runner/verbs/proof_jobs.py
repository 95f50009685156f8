"""What the proofs on live workers share: the experiment as it is proved, its jobs, and the groups that train them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import checkpoint
from runner.errors import TrainingError, refuse
from runner.executors import ray_cluster
from runner.executors.live_workers import LiveWorkers
from runner.job import Job, Memory
from runner.plan import DataFacts, make_plan
from runner.preflight import this_machine
from runner.prepare import Prepared
from runner.request import Request
from runner.resources import plan_resources
from runner.schema import Experiment, Precision
from runner.tracking import store_uri
from runner.verbs.proof import Compose, proof_folder, trains
from runner.verbs.train import attachments

Open = Callable[[int], AbstractContextManager[LiveWorkers]]  # so many workers, for the length of a block


def own_arguments(
    arguments: Sequence[str], defaults: Mapping[str, int], least: int = 1
) -> tuple[dict[str, int], list[str]]:
    """The proof's own arguments (`steps=5`), whole numbers of `least` or more, and the overrides. Raises ConfigError."""
    own, overrides = dict(defaults), []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in defaults:
            overrides.append(argument)
        elif value.isdecimal() and int(value) >= least:
            own[key] = int(value)
        else:
            raise refuse(key, value, f"must be a whole number, {least} or more", f"{key}={defaults[key]}")
    return own, overrides


def proved(name: str, compose: Compose, overrides: Sequence[str]) -> Request:
    """The composed experiment, in the proof's folder. Raises ConfigError for one that is to run on a cluster."""
    request = replace(trains(compose(overrides)), run_dir=proof_folder(name))
    address = ray_cluster.cluster_address(request.experiment.scaling.address)
    if address is not None:
        raise refuse(
            "scaling.address", address, "proofs run on workers of this machine", "scaling.address=local"
        )
    return request


def settled(experiment: Experiment, **trainer: Any) -> Experiment:
    """On CPUs, repeatable, to its end; what is beside the numbers is left out. `trainer`: values that replace its own."""
    return replace(
        experiment,
        dry_run=False,
        trainer=replace(
            experiment.trainer,
            **{"deterministic": True, "patience": None, "compile": False, "profile_steps": None, **trainer},
        ),
        scaling=replace(experiment.scaling, use_gpu=False),
        checkpoint=replace(
            experiment.checkpoint, enabled=True, every_epochs=None, every_steps=None, every_minutes=None
        ),
        horovod=replace(experiment.horovod, timeline=False),
        tracking=replace(experiment.tracking, plots=False, log_model=False),
    )


def in_float64(experiment: Experiment) -> Experiment:
    return replace(experiment, trainer=replace(experiment.trainer, precision=Precision.float64))


def planned(prepared: Prepared, facts: DataFacts, num_workers: int, **trainer: Any) -> Prepared:
    """The same on `num_workers` workers and with other trainer settings, on as many rows as `facts` say."""
    experiment = replace(
        prepared.experiment,
        trainer=replace(prepared.experiment.trainer, **trainer),
        scaling=replace(prepared.experiment.scaling, num_workers=num_workers),
    )
    plan = make_plan(experiment, facts, plan_resources(experiment, prepared.machine))
    return replace(prepared, experiment=experiment, plan=plan, data=replace(prepared.data, facts=facts))


def job_of(prepared: Prepared, run_dir: Path, roots: tuple[str, ...]) -> Job:
    """Without a run in MLflow: the proof as a whole has one."""
    return Job(
        experiment=prepared.experiment,
        plan=prepared.plan,
        data=prepared.data.facts,
        run_dir=run_dir,
        run_id=None,
        tracking_uri=None,
        working_dir=Path.cwd(),
        import_roots=roots,
        attachments=attachments(prepared.data.preprocessing),
    )


def memory_of(prepared: Prepared) -> Memory:
    return Memory(prepared.data.splits, prepared.initial, prepared.data.sampler)


def last_state(run_dir: Path) -> dict[str, Any]:
    """Of the last checkpoint: `weights` are those that are evaluated, `model` a model's own beside a moving average."""
    found = checkpoint.load_latest(run_dir / "checkpoints")
    if found is None:
        raise TrainingError(f"{run_dir}: the training left no checkpoint")
    return found[2]


def groups(request: Request) -> Open:
    """Live workers in a Ray of this machine, started here."""
    experiment = request.experiment
    ray_cluster.start(None, this_machine(False).cpus, request.import_roots, experiment.verbose)
    horovod = replace(experiment.horovod, timeline=False)
    return lambda num_workers: LiveWorkers(num_workers, horovod, deterministic=True)


def store_of(request: Request) -> str | None:
    return store_uri(request.experiment.tracking, request.outputs)
