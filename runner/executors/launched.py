"""What a launcher of several processes has told this one: its rank, and with it what the config must say.

`horovodrun -np 2 python -m runner …` starts the command line once for each rank, so each of them would be a driver. Rank 0
alone is; what was launched is not configured a second time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.errors import ConfigError, refuse

NAME = "horovodrun"
RANK, SIZE, HOSTS, IS_ELASTIC = "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_CROSS_SIZE", "HOROVOD_ELASTIC"
STORE = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT")  # the launcher's, of keys and values
OF_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")  # what mpirun sets
VERBS = ("train", "resume")
SEVERAL = ("-m", "--multirun", "hydra.mode=MULTIRUN")


@dataclass(frozen=True)
class Launch:
    """Seen from one of its processes."""

    rank: int
    size: int
    hosts: int = 1
    unknown: str | None = None  # a way to launch that cannot be trained with


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """None for a process that is the only one of its command line. Not for a worker of Ray, which is told the same."""
    if all(name in environment for name in (RANK, SIZE, *STORE)):
        unknown = (
            "horovodrun with --min-np or a script that finds hosts" if IS_ELASTIC in environment else None
        )
        hosts = int(environment.get(HOSTS, 1))
        return Launch(int(environment[RANK]), int(environment[SIZE]), hosts, unknown)
    if all(name in environment for name in OF_MPI):
        rank, size = (int(environment[name]) for name in OF_MPI)
        return Launch(rank, size, unknown="mpirun") if size > 1 else None
    return None


def told(launch: Launch, verb: str, arguments: Sequence[str]) -> list[str]:
    """The arguments with what the launch says. Raises ConfigError where they say something else."""
    if launch.unknown is not None:
        instead = f"horovodrun -np {launch.size} python -m runner …"
        raise refuse(
            "executor", launch.unknown, "this Horovod trains with a fixed number of ranks by Gloo", instead
        )
    if verb not in VERBS:
        raise ConfigError(f"{verb}: horovodrun is for {' and '.join(VERBS)}; type python -m runner {verb} …")
    for argument in arguments:
        if argument in SEVERAL:
            instead = "python -m runner --multirun …, without horovodrun"
            raise ConfigError(f"{argument}: horovodrun trains one job a launch; type {instead}")
    workers = str(launch.size)
    for argument in arguments:
        key, _, value = argument.lstrip("+").partition("=")
        if key in ("executor", "executor.name") and value != NAME:
            raise refuse(key, value, "horovodrun has started this", f"python -m runner … {argument}")
        if key == "scaling.num_workers" and value != workers:
            instead = f"horovodrun -np {value} …" if value.isdecimal() else "nothing of it"
            raise refuse(key, value, f"horovodrun has started {workers}", instead)
    executor = "executor" if verb == "train" else "executor.name"  # a run that goes on is changed by keys
    return [*arguments, f"{executor}={NAME}", f"scaling.num_workers={workers}"]
