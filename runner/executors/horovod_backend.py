"""Horovod as a backend of Ray Train V2, which has none of its own.

    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    DataParallelTrainer(train_loop_per_worker, backend_config=HorovodConfig(), scaling_config=…).fit()

Knows nothing of runner: it could be Ray's. V1's backend does not work there, for it reads `worker_group.workers`, which V2's
groups do not have, leaves its server running, and takes the workers of two nodes for a mistake where both have one host name.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import ray
from horovod.ray.runner import Coordinator, MiniSettings
from horovod.ray.utils import detect_nics, nics_to_env_var
from horovod.runner.common.util import secret
from ray.train.backend import Backend, BackendConfig


@dataclass
class HorovodConfig(BackendConfig):
    """The settings of V1's HorovodConfig, with the same names and defaults.

    nics: network interfaces that may be used; None: found out. verbose: Horovod's, 0 to 2. key: the secret by which services
    that look for interfaces know each other; None: a new one. timeout_s: for the services to find each other, in seconds. The
    others are Horovod's settings too, which nothing needs where Ray starts the workers; `ssh_str`, a private key, is written to
    `ssh_identity_file`.
    """

    nics: set[str] | None = None
    verbose: int = 1
    key: str | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    ssh_str: str | None = None
    timeout_s: int = 300
    placement_group_timeout_s: int = 100

    def __post_init__(self) -> None:
        if self.ssh_str and self.ssh_identity_file and not Path(self.ssh_identity_file).exists():
            Path(self.ssh_identity_file).touch(0o600)
            Path(self.ssh_identity_file).write_text(self.ssh_str)

    @property
    def backend_cls(self) -> type[Backend]:
        return HorovodBackend

    def settings(self) -> MiniSettings:
        """As Horovod takes them."""
        named = {field.name for field in fields(MiniSettings)}
        given = {name: value for name, value in vars(self).items() if name in named}
        return MiniSettings(**given | {"key": self.key or secret.make_secret_key()})


class HorovodBackend(Backend):
    """Tells each worker its rank and where they meet: a server in the controller's process, for as long as the group lives.

    `hvd.init()` is the training function's. A group that is started again gets a server of its own.
    """

    share_cuda_visible_devices = True
    _server: Any = None

    def on_start(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        """Raises what Horovod raises where the hosts do not reach each other, and Ray's errors where a worker is lost."""
        settings, workers = backend_config.settings(), worker_group.get_workers()
        coordinator = Coordinator(settings)
        for rank, worker in enumerate(workers):
            coordinator.register(worker.metadata.hostname, worker.metadata.node_id, rank)
        places = coordinator.finalize_registration()
        meeting = coordinator.establish_rendezvous()
        self._server = coordinator.rendezvous
        try:
            on_hosts = {worker.metadata.hostname: _Prober(worker) for worker in workers}
            nics = detect_nics(settings, all_host_names=list(on_hosts), node_workers=list(on_hosts.values()))
            meeting |= nics_to_env_var(nics)
            told = []
            for rank, worker in enumerate(workers):
                own = {"RANK": rank, "SIZE": len(workers), "HOSTNAME": worker.metadata.node_id}
                named = {f"HOROVOD_{name}": value for name, value in own.items()}
                told.append(
                    worker_group.execute_single_async(rank, _set_environment, named | places[rank] | meeting)
                )
            ray.get(told)
        except BaseException:
            self._stop()
            raise

    def on_shutdown(self, worker_group: Any, backend_config: HorovodConfig) -> None:
        self._stop()

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            server._httpd.server_close()  # its port


class _Prober:
    """What Horovod takes for an actor of its own, to look for interfaces on a host."""

    def __init__(self, worker: Any) -> None:
        self._actor, self.execute = worker.actor, self

    def remote(self, function: Any) -> Any:
        return self._actor.execute.remote(function, None)


def _set_environment(variables: dict[str, Any]) -> None:
    """Runs in a worker."""
    os.environ.update({name: str(value) for name, value in variables.items()})
