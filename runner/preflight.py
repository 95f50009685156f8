"""Can this plan run here? Each check passes or refuses with what is needed, what there is and what to type."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

from runner import memory
from runner.errors import PreflightError
from runner.memory import Footprint, Needs
from runner.plan import Plan
from runner.resources import ACCELERATOR, MIN_CPU_SHARE, Machine, ResourcePlan, workers_in_words
from runner.schema import Experiment

CGROUP = Path("/sys/fs/cgroup")
CPU_QUOTA = CGROUP / "cpu.max"  # cgroup v2: "max 100000" or "200000 100000"


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

    count = torch.cuda.device_count()
    free = min((torch.cuda.mem_get_info(device)[0] for device in range(count)), default=None)
    return Machine(cpus=cpus, gpus=count, horovod_gpu=horovod_has_nccl(), gpu_memory=free)


def horovod_has_nccl() -> bool:
    import horovod.torch as hvd

    return bool(hvd.nccl_built())


def check_horovod(resources: ResourcePlan, machine: Machine) -> str:
    """Horovod is there, and was built for the devices that are asked for."""
    try:
        import horovod
        import horovod.torch as hvd
    except ImportError as error:
        raise PreflightError(f"Horovod cannot be imported ({error}); type make setup") from error
    if resources.use_gpu and not machine.horovod_gpu:
        raise PreflightError(
            "scaling.use_gpu=true: this Horovod was built without NCCL; type scaling.use_gpu=false, "
            "or rebuild it where nvcc and a CUDA build of torch are installed (see CONTRIBUTING.md)"
        )
    has = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built()}
    return f"Horovod {horovod.__version__} with {', '.join(name for name, built in has.items() if built)}"


def check_memory(experiment: Experiment, plan: Plan, data: int, machine: Machine, model: Footprint) -> str:
    """The workers' memory, and a GPU's where they have one; see memory.py for what is estimated."""
    free = free_bytes() if machine.memory is None else machine.memory
    found = _fits(
        "memory", memory.machine_needs(experiment, plan, model, data), free, experiment, machine.name
    )
    if plan.resources.use_gpu and machine.gpu_memory is not None:
        share = int(machine.gpu_memory * min(1.0, plan.resources.gpus_per_worker))
        needs = memory.device_needs(experiment, plan, model)
        found += "; " + _fits("GPU memory", needs, share, experiment, "its share of a GPU")
    return found


def fit_together(experiment: Experiment, plan: Plan, data: int, machine: Machine, model: Footprint) -> int:
    """How many trainings like this one the memory holds at a time."""
    free = free_bytes() if machine.memory is None else machine.memory
    return memory.fitting(memory.machine_needs(experiment, plan, model, data), data, free)


def check_disk(experiment: Experiment, model: Footprint, folder: Path) -> str:
    """The checkpoints that are kept."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free, needed = shutil.disk_usage(there).free, memory.kept_bytes(experiment, model)
    if needed > free:
        fewer = "checkpoint.keep=2 checkpoint.keep_best=0 or " if experiment.checkpoint.keep > 2 else ""
        raise PreflightError(
            f"hydra.run.dir={folder}: the checkpoints that are kept need about {memory.in_words(needed)}, "
            f"{memory.in_words(free)} are free there; type {fewer}hydra.run.dir=… on a larger disk"
        )
    return f"checkpoints need about {memory.in_words(needed)}, {memory.in_words(free)} are free in {there}"


def _fits(what: str, needs: Needs, free: int, experiment: Experiment, where: str) -> str:
    about = f"about {memory.in_words(needs.total())} of {what} for {workers_in_words(needs.workers)}"
    if needs.total() <= free:
        return f"{about}, {memory.in_words(free)} are free"
    batch, steps = experiment.trainer.batch_size, experiment.trainer.accumulation_steps
    parts = next(
        (2**power for power in range(1, 20) if needs.total(2**power) <= free and 2**power <= batch), None
    )
    fewer = next(
        (workers for workers in range(needs.workers - 1, 0, -1) if needs.total(workers=workers) <= free), None
    )
    options = [
        *(
            [f"trainer.batch_size={batch // parts} trainer.accumulation_steps={steps * parts}"]
            if parts
            else []
        ),
        *([f"scaling.num_workers={fewer}"] if fewer else []),
        "skip_checks=[memory] to try it all the same",
    ]
    at_fault = f"trainer.batch_size={batch}" if parts else f"model={experiment.model.target['_target_']}"
    raise PreflightError(
        f"{at_fault}: {about}, {where} has {memory.in_words(free)} free; type {' or '.join(options)}"
    )


def free_bytes() -> int:
    """Of this machine's memory, within the limit of the container."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used, cache = (CGROUP / name for name in ("memory.max", "memory.current", "memory.stat"))
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        reclaimable = next(
            (
                int(line.split()[1])
                for line in cache.read_text().splitlines()
                if line.startswith("inactive_file ")
            ),
            0,
        )
        free = min(free, int(text) - int(used.read_text()) + reclaimable)
    return free


def check_resources(resources: ResourcePlan, machine: Machine) -> str:
    """Enough CPUs and GPUs for all workers at once; else Ray would wait for them for ever."""
    workers = resources.num_workers
    gpus = f"{machine.name} has {machine.gpus:g}"
    _check("GPU", workers, resources.gpus_per_worker, machine.gpus, gpus, ["scaling.use_gpu=false"])
    available = machine.cpus - resources.reserved_cpus
    cpus = f"{machine.name} has {available:g}"
    if resources.reserved_cpus:
        cpus += f" beside the {resources.reserved_cpus:g} kept free for Ray Data"
    share = math.floor(available / workers * 100) / 100
    others = [f"scaling.resources_per_worker.CPU={share:g}"] if share >= MIN_CPU_SHARE else []
    others += ["dataset.ingest=tensors"] if resources.reserved_cpus else []
    _check("CPU", workers, resources.cpus_per_worker, available, cpus, others)
    for name, each in resources.custom:
        _check_custom(name, each, workers, machine)
    gpus = f" and {machine.gpus:g} GPUs" if machine.gpus else ""
    return f"{resources.line()}; {machine.name} has {machine.cpus:g} CPUs{gpus}"


def _check_custom(name: str, each: float, workers: int, machine: Machine) -> None:
    has = machine.custom.get(name, 0.0)
    if workers * each <= has + 1e-9:
        return
    if name.startswith(ACCELERATOR):
        found = [known.removeprefix(ACCELERATOR) for known in machine.custom if known.startswith(ACCELERATOR)]
        kinds = ", ".join(sorted(found)) or "no GPU that Ray knows"
        instead = min(found, default="null")
        raise PreflightError(
            f"scaling.accelerator_type={name.removeprefix(ACCELERATOR)}: {machine.name} has {kinds}; "
            f"type scaling.accelerator_type={instead}"
        )
    raise PreflightError(
        f"scaling.custom_resources.{name}={each:g}: {workers_in_words(workers)} × {each:g} {name} need "
        f"{workers * each:g}, {machine.name} has {has:g}; type scaling.custom_resources.{name}=0, or start a cluster's nodes "
        f"with ray start --resources='{{\"{name}\": …}}'"
    )


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
