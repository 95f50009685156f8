"""What can be known of a multirun's jobs before the first one starts, of what they have in common once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from runner import config, preflight, prepare
from runner.checks import Checks
from runner.executors import ray_cluster
from runner.plan import START
from runner.resources import Machine, plan_resources
from runner.schema import Experiment
from runner.tracking import check_store

if TYPE_CHECKING:
    from runner.ingest.arrays import Data

UNKNOWN = Machine(cpus=1e9, is_cluster=True, memory=1 << 62)  # a cluster, which the jobs join themselves


class JobChecks:
    """Called with one job after another. Raises ConfigError or PreflightError, as the job itself would."""

    def __init__(self) -> None:
        self._data: dict[str, Data] = {}  # by the dataset's config
        self._tried: set[str] = set()  # stores, and what a batch has gone through

    def __call__(self, composed: DictConfig) -> None:
        experiment = config.load(composed)
        checks = Checks(experiment.skip_checks)
        machine = UNKNOWN
        if ray_cluster.cluster_address(experiment.scaling.address) is None:
            machine = preflight.this_machine(experiment.scaling.use_gpu)
        resources = plan_resources(experiment, machine)
        checks.run("resources", lambda: preflight.check_resources(resources, machine))
        if (tracking := repr(experiment.tracking)) not in self._tried:
            checks.run("store", lambda: check_store(experiment.tracking, Path.cwd() / "outputs"))
            self._tried.add(tracking)
        config.check_targets(experiment)
        prepare.check_kind(experiment)
        data = self._load(experiment)
        experiment, plan = prepare.planned(experiment, data, resources, machine, checks, START)
        trainer = experiment.trainer
        optimizer = replace(experiment.optimizer, lr=0.0)
        parts = (
            experiment.model,
            experiment.loss,
            experiment.metrics,
            optimizer,
            trainer.batch_size,
            trainer.precision,
        )
        key = repr((_of(experiment), parts))
        # The weights of model.init_from are fetched by the job itself.
        if key not in self._tried and experiment.model.init_from is None:
            prepare.try_batch(experiment, plan, data, None, checks)
            self._tried.add(key)

    def _load(self, experiment: Experiment) -> Data:
        """One seed stands for all: another deals the same rows."""
        from runner.ingest import arrays

        key = _of(experiment)
        if key not in self._data:
            self._data[key] = arrays.load(experiment.dataset, experiment.seed)
        return self._data[key]


def _of(experiment: Experiment) -> str:
    dataset = asdict(experiment.dataset)
    dataset["target"] = {key: value for key, value in (dataset["target"] or {}).items() if key != "seed"}
    return repr(dataset)
