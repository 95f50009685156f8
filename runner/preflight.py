"""Can this plan run here? Each check passes or refuses with what is needed, what there is and what to type."""

from __future__ import annotations

import math
import os
from pathlib import Path

from runner.errors import PreflightError
from runner.resources import MIN_CPU_SHARE, Machine, ResourcePlan, workers_in_words

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: "max 100000" or "200000 100000"


def this_machine(want_gpu: bool | None) -> Machine:
    """CPUs that this process may use, and GPUs (looked for only where the config does not exclude them)."""
    cpus = float(len(os.sched_getaffinity(0)))
    if CPU_QUOTA.exists():
        quota, period = CPU_QUOTA.read_text().split()
        if quota != "max":
            cpus = max(1.0, min(cpus, math.floor(int(quota) / int(period))))
    if want_gpu is False or not any(Path("/dev").glob("nvidia[0-9]*")):
        return Machine(cpus=cpus)
    import torch

    return Machine(cpus=cpus, gpus=torch.cuda.device_count(), horovod_gpu=horovod_has_nccl())


def horovod_has_nccl() -> bool:
    import horovod.torch as hvd

    return bool(hvd.nccl_built())


def check_resources(resources: ResourcePlan, machine: Machine) -> None:
    """Enough CPUs and GPUs for all workers at once; else Ray would wait for them for ever."""
    workers = resources.num_workers
    gpus = f"{machine.name} has {machine.gpus:g}"
    _check("GPU", workers, resources.gpus_per_worker, machine.gpus, gpus, ["scaling.use_gpu=false"])
    if resources.use_gpu and not machine.horovod_gpu:
        raise PreflightError(
            "scaling.use_gpu=true: this Horovod was built without NCCL; type scaling.use_gpu=false, "
            "or rebuild it where nvcc and a CUDA build of torch are installed (see CONTRIBUTING.md)"
        )
    available = machine.cpus - resources.reserved_cpus
    cpus = f"{machine.name} has {available:g}"
    if resources.reserved_cpus:
        cpus += f" beside the {resources.reserved_cpus:g} kept free for Ray Data"
    share = math.floor(available / workers * 100) / 100
    others = [f"scaling.resources_per_worker.CPU={share:g}"] if share >= MIN_CPU_SHARE else []
    others += ["dataset.ingest=tensors"] if resources.reserved_cpus else []
    _check("CPU", workers, resources.cpus_per_worker, available, cpus, others)


def _check(kind: str, workers: int, each: float, available: float, has: str, others: list[str]) -> None:
    needed = workers * each
    if needed <= available + 1e-9:
        return
    fitting = math.floor(available / each + 1e-9)
    options = [f"scaling.num_workers={fitting}", *others] if fitting else others
    instead = (
        " or ".join(options) or f"scaling.num_workers={int(available)} scaling.resources_per_worker.{kind}=1"
    )
    raise PreflightError(
        f"scaling.num_workers={workers}: {workers_in_words(workers)} × {each:g} {kind} need {needed:g} {kind}s, "
        f"{has}; type {instead}"
    )
