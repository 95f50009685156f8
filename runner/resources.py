"""The machine or cluster, and what each worker gets of it. Pure arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from runner.schema import Experiment, Ingest

ACCELERATOR, ACCELERATOR_SHARE = "accelerator_type:", 0.001  # of a node's own resource for what GPU it has
MIN_CPU_SHARE = 0.1  # ten processes on a core is where sharing stops being of use


@dataclass(frozen=True)
class Machine:
    """What there is to run on: one machine, or a Ray cluster (whose totals these are)."""

    cpus: float
    gpus: float = 0.0
    horovod_gpu: bool = False  # the Horovod build has NCCL
    is_cluster: bool = False
    memory: int | None = None  # bytes that are free on all nodes together; None: not asked yet
    gpu_memory: int | None = None  # bytes that are free on the fullest GPU; None: not known
    custom: Mapping[str, float] = field(default_factory=dict)  # resources of a cluster besides CPUs and GPUs
    hosts: int = 1  # of horovodrun, taken to be alike

    def holds(self, wanted: Mapping[str, float]) -> bool:
        """Whether all of it is there, by the names that Ray has."""
        has = {"CPU": self.cpus, "GPU": self.gpus, **self.custom}
        return all(amount <= has.get(kind, 0.0) + 1e-9 for kind, amount in wanted.items())

    @property
    def name(self) -> str:
        if self.hosts > 1:
            return f"{self.hosts} hosts like this one"
        return "the cluster" if self.is_cluster else "this machine"

    def times(self, hosts: int, free: Callable[[], int]) -> Machine:
        """So many like it; `free` says how many bytes of its memory are free."""
        if hosts == 1:
            return self
        return replace(
            self, hosts=hosts, cpus=hosts * self.cpus, gpus=hosts * self.gpus, memory=hosts * free()
        )


@dataclass(frozen=True)
class ResourcePlan:
    num_workers: int
    cpus_per_worker: float
    gpus_per_worker: float
    reserved_cpus: float = 0.0  # kept free for Ray Data's tasks
    custom: tuple[tuple[str, float], ...] = ()  # name and amount of other resources, a worker

    def total(self) -> Counter[str]:
        """Of all workers, with what is kept free, by the names that Ray has."""
        each = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker, **dict(self.custom)}
        total = Counter({kind: self.num_workers * amount for kind, amount in each.items() if amount})
        return total + Counter({"CPU": self.reserved_cpus})

    @property
    def use_gpu(self) -> bool:
        return self.gpus_per_worker > 0

    @property
    def threads(self) -> int:
        """Torch threads a worker; from the config's CPUs alone, so that the numbers do not depend on the machine."""
        return max(1, int(self.cpus_per_worker))

    def line(self) -> str:
        gpus = f" + {self.gpus_per_worker:g} GPU" if self.use_gpu else ""
        custom = "".join(f" + {amount:g} {name}" for name, amount in self.custom)
        reserved = f", {self.reserved_cpus:g} CPU free for Ray Data" if self.reserved_cpus else ""
        return f"{workers_in_words(self.num_workers)} × {self.cpus_per_worker:g} CPU{gpus}{custom}{reserved}"


def workers_in_words(number: int) -> str:
    """So many, in words."""
    return f"{number} worker{'' if number == 1 else 's'}"


def plan_resources(experiment: Experiment, machine: Machine) -> ResourcePlan:
    """CPUs and GPUs a worker. An explicit number in the config is taken as it is; preflight judges it."""
    scaling = experiment.scaling
    workers = scaling.num_workers
    gpus = scaling.resources_per_worker.GPU
    if scaling.use_gpu is False:
        gpus = 0.0
    if gpus is None:
        wanted = machine.gpus > 0 and machine.horovod_gpu if scaling.use_gpu is None else scaling.use_gpu
        gpus = 1.0 if wanted else 0.0
    # Ray Data reads with tasks of its own: with every CPU held by a worker they would wait for ever.
    reserved = 1.0 if experiment.dataset.ingest is Ingest.ray_data else 0.0
    cpus = scaling.resources_per_worker.CPU
    if cpus is None:
        # A machine is shared by fractions; a cluster (which may grow) gives whole CPUs.
        most = max(workers, experiment.executor.max_workers or 0)
        share = math.floor((machine.cpus - reserved) / most * 100) / 100
        cpus = 1.0 if machine.is_cluster or share >= 1 else max(MIN_CPU_SHARE, share)
    custom = sorted((name, amount) for name, amount in scaling.custom_resources.items() if amount)
    if scaling.accelerator_type is not None:  # as Ray's ScalingConfig(accelerator_type=…) asks for it
        custom.append((ACCELERATOR + scaling.accelerator_type, ACCELERATOR_SHARE))
    return ResourcePlan(workers, cpus, gpus, reserved, tuple(custom))
