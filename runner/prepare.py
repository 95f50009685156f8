"""A composed job → what can be launched: machine, data, plan, everything checked that can be known before."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner import build, config, going_on, preflight
from runner.checks import Checks
from runner.errors import ConfigError, nearest, refuse
from runner.executors import choice, nodes, ray_cluster
from runner.executors.launched import launched
from runner.known import Known
from runner.plan import Plan, Position, make_plan
from runner.rank_log import captured
from runner.report.console import relative
from runner.request import Request
from runner.resources import Machine, ResourcePlan, plan_resources
from runner.run_folder import RESULT, RUN, read_result
from runner.schema import Experiment, OnOutage
from runner.tracking import check_store, store_uri

if TYPE_CHECKING:
    from runner.ingest.arrays import Data
    from runner.memory import Footprint
    from runner.parameters import Weights


@dataclass(frozen=True)
class Prepared:
    experiment: Experiment  # with what the model itself decides (a LightningModule's learning rate)
    plan: Plan
    data: Data
    initial: Weights | None  # what the model starts from, where the config says
    machine: Machine
    address: str | None  # of a Ray cluster, which has been joined
    notes: tuple[str, ...] = ()  # for the banner
    change: str | None = None  # of a run that goes on: an event of it
    together: int | None = None  # so many like it fit into memory at a time; None: not known


def prepare(request: Request, checks: Checks | None = None, known: Known | None = None) -> Prepared:
    """Raises ConfigError or PreflightError with what to type instead. `known`: of jobs that were prepared before."""
    experiment = request.experiment
    choice.check_launch(experiment, request.resumes is not None)
    checks = checks or Checks(experiment.skip_checks)
    known = known or Known()
    if request.resumes is None and any((request.run_dir / name).exists() for name in (RUN, RESULT)):
        raise ConfigError(
            f"hydra.run.dir={relative(request.run_dir)}: holds a run already; type another folder"
        )
    address, machine, resources = find_resources(request, checks, known)
    if not experiment.dry_run:
        store = ("store", repr(experiment.tracking))
        checks.begin(
            "store",
            lambda: known.once(*store, find=lambda: check_store(experiment.tracking, request.outputs)),
        )
        check_nodes(experiment, machine, request.outputs, checks, known)
    config.check_targets(experiment)
    # With torch, numpy and the dataset's own imports the slow part.
    from runner.ingest import arrays

    check_kind(experiment)
    data = checks.need("data", lambda: known.data(experiment), arrays.Data.line)
    if not experiment.dry_run and not choice.is_alone(experiment):
        # Only now: Horovod imports torch too, and two threads at it take longer than one.
        horovod = ("horovod", resources.use_gpu)
        checks.begin(
            "horovod",
            lambda: known.once(*horovod, find=lambda: preflight.check_horovod(resources, machine)),
        )
    manifest = None if request.resumes is None else going_on.newest(request.run_dir)
    experiment, plan = planned(experiment, data, resources, machine, checks, going_on.position(manifest))
    notes, change = [], None
    if manifest is not None:
        is_finished = (read_result(request.run_dir) or {}).get("status") == "FINISHED"
        change = going_on.check(manifest, experiment, plan, data.facts, is_finished)
        notes += [f"goes on from step {manifest['step']}", *([change] if change else [])]
    initial, note = first_weights(experiment, plan, data, request, known)
    model = try_batch(experiment, plan, data, initial, checks, known)
    together = None
    if model is not None:
        taken = experiment, plan, data.nbytes(), machine, model
        checks.begin("memory", partial(preflight.check_memory, *taken))
        if "memory" not in experiment.skip_checks:
            together = preflight.fit_together(*taken)
        checks.begin("disk", partial(preflight.check_disk, experiment, model, request.run_dir))
    checks.join()
    return Prepared(experiment, plan, data, initial, machine, address, (*notes, *note), change, together)


def find_resources(
    request: Request, checks: Checks, known: Known
) -> tuple[str | None, Machine, ResourcePlan]:
    """The address of a Ray cluster, if one was joined, what there is to run on, and what of it the job gets."""
    experiment = request.experiment
    needs_ray = not experiment.dry_run and choice.uses_ray(experiment)
    if needs_ray:
        ray_cluster.use_train(choice.uses_train_v2(experiment), experiment.executor.name.value)
    address = ray_cluster.cluster_address(experiment.scaling.address) if needs_ray else None
    machine = known.once(
        "machine",
        address,
        experiment.scaling.use_gpu,
        find=lambda: find_machine(experiment, address, request.import_roots),
    )
    resources = plan_resources(experiment, machine)
    checks.run("resources", lambda: preflight.check_resources(resources, machine))
    return address, machine, resources


def check_kind(experiment: Experiment) -> None:
    """What can be known of the executor, and of a LightningModule or any other model from its class."""
    from runner import lightning

    choice.check(experiment)
    if lightning.is_module(build.locate(experiment.model.target["_target_"])):
        lightning.check_rule(experiment)
    else:
        check_monitor(experiment)


def planned(
    experiment: Experiment,
    data: Data,
    resources: ResourcePlan,
    machine: Machine,
    checks: Checks,
    position: Position,
) -> tuple[Experiment, Plan]:
    """The plan, and the experiment with what a LightningModule decides itself; refused where the weights alone do not fit."""
    from runner import learner, lightning, rehearsal

    plan = make_plan(experiment, data.facts, resources, position)
    check_rows(plan)
    with unheard():
        weights = rehearsal.weights_alone(partial(learner.construct, experiment, plan, data.facts))
    if weights is not None:  # before the first of them is made
        fits = partial(preflight.check_memory, experiment, plan, data.nbytes(), machine, weights)
        checks.run("memory", fits, must=True)
    if lightning.is_module(build.locate(experiment.model.target["_target_"])):
        with unheard():
            module = learner.construct(experiment, plan, data.facts)
        lightning.check(module, experiment.checkpoint.monitor)
        optimizer = replace(experiment.optimizer, lr=lightning.base_lr(module))
        experiment = replace(experiment, optimizer=optimizer)
        lightning.check_rule(experiment, plan.learning_rate)
        plan = make_plan(experiment, data.facts, resources, position)
    return experiment, plan


def try_batch(
    experiment: Experiment, plan: Plan, data: Data, initial: Weights | None, checks: Checks, known: Known
) -> Footprint | None:
    """What the model took of memory; None where the check is left out."""
    from runner import rehearsal

    found: list[Footprint] = []

    def tried() -> tuple[Footprint, str]:
        inputs, targets = rehearsal.first_batch(experiment, plan, data)
        with unheard():
            taken = rehearsal.rehearse(experiment, plan, data.facts, initial, inputs, targets)
        return (
            taken,
            f"inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)} went through model and loss",
        )

    def batch() -> str:
        # Other seeds and learning rates go the same way; the numbers of model.init_from need not.
        optimizer = replace(experiment.optimizer, lr=0.0)
        dataset = replace(experiment.dataset, target={**experiment.dataset.target, "seed": None})
        trainer = (experiment.trainer.batch_size, experiment.trainer.precision)
        parts = (experiment.model, dataset, experiment.loss, experiment.metrics, optimizer, trainer)
        taken, line = known.once("batch", repr(parts), id(initial), find=tried)
        found.append(taken)
        return line

    checks.run("batch", batch)
    return found[0] if found else None


@contextmanager
def unheard() -> Iterator[None]:
    """What the user's model prints here is seen when the workers build it."""
    with tempfile.TemporaryDirectory() as folder, captured(Path(folder) / "output.log"):
        yield


def first_weights(
    experiment: Experiment, plan: Plan, data: Data, request: Request, known: Known
) -> tuple[Weights | None, list[str]]:
    """Those of model.init_from, and a line that says how many of them fit."""
    from runner import learner, parameters

    if experiment.model.init_from is None:
        return None, []
    uri = store_uri(experiment.tracking, request.outputs)
    where = parameters.resolve(experiment.model.init_from, uri, request.run_dir / "init_from")
    initial = known.once("weights", where, find=lambda: parameters.read_weights(where))
    with unheard():
        model = learner.construct(experiment, plan, data.facts)
    return initial, [parameters.initialise(model, experiment.model, initial)]


def check_nodes(
    experiment: Experiment, machine: Machine, outputs: Path, checks: Checks, known: Known
) -> None:
    """What every node of a cluster must have and reach."""
    if machine.is_cluster:
        may_wait = experiment.tracking.on_outage is OnOutage.spool
        uri = None if may_wait else store_uri(experiment.tracking, outputs)

        def check() -> str:
            return "; ".join([nodes.check_versions(), *([nodes.check_store(uri)] if uri else [])])

        checks.begin("nodes", lambda: known.once("nodes", uri, find=check))


def check_rows(plan: Plan) -> None:
    workers = plan.num_workers
    if plan.train_rows < workers:
        raise refuse(
            "scaling.num_workers",
            workers,
            f"more workers than the {plan.train_rows} training rows",
            f"scaling.num_workers={plan.train_rows}",
        )


def check_monitor(experiment: Experiment) -> None:
    from runner.objective import metric_names

    monitor, known = experiment.checkpoint.monitor, metric_names(experiment)
    if monitor not in known:
        close = nearest(monitor, known) or known[1]
        allowed = f"a {experiment.dataset.task.value} measures {', '.join(known)}"
        raise refuse("checkpoint.monitor", monitor, allowed, f"checkpoint.monitor={close}")


def find_machine(experiment: Experiment, address: str | None, import_roots: tuple[str, ...]) -> Machine:
    """This machine, or the cluster at `address`, which is joined and whose nodes are checked."""
    if address is None:
        machine = preflight.this_machine(experiment.scaling.use_gpu)
        launch = launched()
        return machine.times(launch.hosts, preflight.free_bytes) if launch else machine
    ray_cluster.start(address, 0, import_roots, experiment.verbose)
    free = sum(nodes.on_nodes(preflight.free_bytes).values())
    return replace(ray_cluster.cluster_machine(preflight.horovod_has_nccl()), memory=free)
