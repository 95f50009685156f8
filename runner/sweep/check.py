"""What can be known of a multirun's job before the first one starts, in milliseconds: not of its data."""

from __future__ import annotations

from omegaconf import DictConfig

from runner import config, preflight
from runner.executors import ray_cluster
from runner.resources import plan_resources


def check_job(composed: DictConfig) -> None:
    """Raises ConfigError or PreflightError, as the job itself would."""
    experiment = config.load(composed)
    config.check_targets(experiment)
    if ray_cluster.cluster_address(experiment.scaling.address) is None:
        machine = preflight.this_machine(experiment.scaling.use_gpu)
        preflight.check_resources(plan_resources(experiment, machine), machine)
