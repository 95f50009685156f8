"""What Ray Train is told of a job; the same for every executor that uses it. Imports no torch."""

from __future__ import annotations

import os
from typing import Any

from runner.executors import ray_cluster
from runner.resources import ResourcePlan
from runner.schema import Horovod, Placement


def preload(is_v2: bool = False) -> None:
    """Import what a fit() needs (about 1 s), while Ray is being started."""
    os.environ.update(ray_cluster.ENVIRONMENT)
    if is_v2:
        from runner.executors import horovod_backend, v2_trainer  # noqa: F401
    else:
        from ray.train.horovod import HorovodTrainer  # noqa: F401


def trainer_class(is_local: bool) -> Any:
    """`is_local`: one machine, and nothing streamed by Ray Data."""
    if is_local:
        from runner.executors.local_trainer import LocalHorovodTrainer

        return LocalHorovodTrainer
    from ray.train.horovod import HorovodTrainer

    return HorovodTrainer


def scaling(resources: ResourcePlan, placement: Placement) -> dict[str, Any]:
    """The arguments of ScalingConfig."""
    each = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        each["GPU"] = resources.gpus_per_worker
    each |= dict(resources.custom)
    return {
        "num_workers": resources.num_workers,
        "use_gpu": resources.use_gpu,
        "resources_per_worker": each,
        "trainer_resources": {"CPU": 0},
        "placement_strategy": placement.value,
    }


def horovod_config(horovod: Horovod) -> Any:
    """Ray's HorovodConfig from conf/horovod."""
    from ray.train.horovod import HorovodConfig

    return HorovodConfig(**horovod_settings(horovod))


def horovod_settings(horovod: Horovod) -> dict[str, Any]:
    """The arguments of a HorovodConfig."""
    return {
        "nics": set(horovod.nics) if horovod.nics else None,
        "verbose": horovod.verbose,
        "key": horovod.key,
        "ssh_port": horovod.ssh_port,
        "ssh_identity_file": horovod.ssh_identity_file,
        "ssh_str": horovod.ssh_str,
        "timeout_s": horovod.timeout_s,
        "placement_group_timeout_s": horovod.placement_group_timeout_s,
    }
