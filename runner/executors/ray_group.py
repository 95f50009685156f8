"""Ranks that Horovod's RayExecutor starts and connects, and that leave nothing behind: what its users here have in common."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from runner.communicator import HorovodCommunicator
from runner.errors import LaunchError
from runner.executors.attempts import EndedError
from runner.executors.ray_node import replaced
from runner.ingest import ray_data
from runner.job import Job, Memory
from runner.schema import Horovod, Ingest, Placement

RECORD_SECONDS = 0.5  # for the other ranks to write down what happened to them

Connect = Callable[[], HorovodCommunicator]
Shards = list[Mapping[str, Any]]  # by rank
_connected: list[HorovodCommunicator] = []  # of a worker's process


class RayGroup:
    """Workers in a Ray that has been started (ray_cluster.start), joined by Horovod. Raises LaunchError where they do not start.

    `workers` are RayExecutor's arguments: `num_workers`, or `num_hosts` and `num_workers_per_host`; `cpus_per_worker`, ….
    `placement` is Ray's strategy; of what Horovod does not ask Ray for, each of the placement group's bundles gets `besides`: a
    bundle is a worker's, or with `num_hosts` a host's. `connect` joins a rank to the others. `executable` (RayExecutor's `executable_cls`) is a class that each worker makes one of,
    with `connect`; without one it is called by itself, and `connected` has what it gave.
    """

    def __init__(
        self,
        horovod: Horovod,
        workers: dict[str, Any],
        connect: Connect,
        placement: Placement = Placement.PACK,
        besides: Mapping[str, float] | None = None,
        executable: type | None = None,
    ) -> None:
        import ray
        from horovod.ray import RayExecutor

        self._executor: Any = RayExecutor(_settings(horovod), use_current_placement_group=False, **workers)
        self._placed: list[Any] = []
        is_free = "num_workers" in workers  # with `num_hosts` RayExecutor itself spreads them
        strategy = placement.value if is_free else None
        place = partial(self._place, ray.util.placement_group, strategy, besides or {})
        try:
            with replaced(ray.util, "placement_group", place):
                self._executor.start(executable_cls=executable, executable_args=[connect])
            if executable is None:
                self._executor.run(_connect, args=[connect])
            self._stop_server()
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            raise LaunchError(f"the workers did not start: {_reason(error, horovod)}") from error

    def __enter__(self) -> RayGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._executor is not None

    def run_remote(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """References to what `function(*arguments)` returns on each rank, in the order of the ranks."""
        pending: list[Any] = self._executor.run_remote(function, args=list(arguments))
        return pending

    def execute(self, function: Callable[[Any], Any], is_single: bool = False) -> list[Any]:
        """What `function(executable)` returns on each rank, or on rank 0 alone. Raises EndedError where one fails; the group is
        closed then."""
        import ray

        execute = self._executor.execute_single if is_single else self._executor.execute
        try:
            found = execute(function)
        except ray.exceptions.RayError as error:
            time.sleep(RECORD_SECONDS)
            self.close()
            raise EndedError(str(error)) from error
        return [found] if is_single else found

    def ended(self, pending: list[Any]) -> EndedError:
        """How Ray tells the end of the ranks, one of which has failed; the others get a moment, and the group is closed."""
        import ray

        ray.wait(pending, num_returns=len(pending), timeout=RECORD_SECONDS)
        accounts = []
        for each in ray.wait(pending, num_returns=len(pending), timeout=0)[0]:
            try:
                ray.get(each)
            except ray.exceptions.RayError as error:
                accounts.append(str(error))
        self.close()
        return EndedError("\n".join(accounts))

    def close(self) -> None:
        """End the workers, whatever they do, and give back what they held; may be called twice."""
        import ray

        if self._executor is None:
            return
        if ray.is_initialized():
            with contextlib.suppress(ray.exceptions.RayError):
                for worker in getattr(self._adapter, "workers", ()):
                    ray.kill(worker)
                for placed in self._placed:  # RayExecutor forgets one that it has waited for in vain
                    ray.util.remove_placement_group(placed)
        self._stop_server()
        self._executor = None

    @property
    def _adapter(self) -> Any:
        return getattr(self._executor, "adapter", None)

    def _place(
        self,
        make: Callable[..., Any],
        wanted: str | None,
        besides: Mapping[str, float],
        bundles: list[dict[str, float]],
        strategy: str,
    ) -> Any:
        """In place of Ray's `placement_group`, as RayExecutor calls it."""
        self._placed.append(make([{**each, **besides} for each in bundles], strategy=wanted or strategy))
        return self._placed[-1]

    def _stop_server(self) -> None:
        """The server at which the ranks have met listens on every interface, without authentication."""
        coordinator: Any = getattr(self._adapter, "coordinator", None)
        server = getattr(coordinator, "rendezvous", None)
        if server is not None and server._httpd is not None:
            coordinator.rendezvous = None
            server.stop()
            server._httpd.server_close()


def connected() -> HorovodCommunicator:
    """Of the rank whose process this is."""
    return _connected[-1]


def dealt(job: Job, memory: Memory) -> tuple[Shards, Memory]:
    """Each rank's share of what Ray Data streams, and the memory without it."""
    if job.experiment.dataset.ingest is not Ingest.ray_data:
        return [{}] * job.plan.num_workers, memory
    shards, splits = ray_data.dealt(memory.splits, job.plan, job.experiment.seed)
    return shards, replace(memory, splits=splits)


def is_one_machine() -> bool:
    """Whether all of Ray is on this machine."""
    import ray

    return all(node["NodeManagerHostname"] == socket.gethostname() for node in ray.nodes() if node["Alive"])


def _connect(connect: Connect) -> None:
    _connected.append(connect())


def _settings(horovod: Horovod) -> Any:
    """RayExecutor's, from conf/horovod."""
    from horovod.ray import RayExecutor

    nics = set(horovod.nics) if horovod.nics else {"lo"} if is_one_machine() else None
    settings = RayExecutor.create_settings(
        timeout_s=horovod.timeout_s,
        ssh_identity_file=horovod.ssh_identity_file,
        ssh_str=horovod.ssh_str,
        placement_group_timeout_s=horovod.placement_group_timeout_s,
        nics=nics,
    )
    settings.verbose, settings.ssh_port = horovod.verbose, horovod.ssh_port
    if horovod.key is not None:
        settings.key = horovod.key.encode()
    return settings


def _reason(error: Exception, horovod: Horovod) -> str:
    if isinstance(error, TimeoutError) and "lacement" in str(error):
        seconds = horovod.placement_group_timeout_s
        return f"Ray had no room for them within {seconds} s (horovod.placement_group_timeout_s)"
    if horovod.nics and "127.0.0.1" in str(error):
        nics = ",".join(horovod.nics)
        return f"on one machine ranks meet at 127.0.0.1, which horovod.nics=[{nics}] has not; type horovod.nics=null"
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
