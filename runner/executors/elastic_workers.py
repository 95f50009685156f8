"""Horovod's elastic driver, with a Ray actor for each worker's process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from runner.diagnosis import account_of
from runner.errors import LaunchError
from runner.executors import ray_cluster
from runner.executors.hosts import Hosts
from runner.job import Job

POLL_SECONDS = 0.1


class Workers:
    """Those of one training; `config` is what each process serves (elastic_rank.serve)."""

    def __init__(self, job: Job, config: dict[str, Any]) -> None:
        from horovod.runner.elastic.driver import ElasticDriver
        from horovod.runner.http.http_server import RendezvousServer

        self._job, self._config, self._settings = job, config, job.experiment.executor
        settings = self._settings
        self._is_local = ray_cluster.cluster_address(job.experiment.scaling.address) is None
        most = settings.max_workers or job.experiment.scaling.num_workers
        cooldown = (settings.cooldown_s[0], settings.cooldown_s[1]) if settings.cooldown_s else None
        self.hosts = Hosts(job.plan.resources, most, self._is_local, settings.discovery, cooldown)
        self.lost: list[str] = []  # Ray's accounts of processes that ended
        self.unable: Exception | None = None  # why Horovod could not go on
        self._processes: dict[str, Any] = {}  # by place
        self._closed = threading.Event()
        logging.getLogger().addHandler(logging.NullHandler())  # else Horovod's lines would be on the screen
        self._rendezvous = RendezvousServer(0)
        self._driver: Any = ElasticDriver(
            self._rendezvous,
            self.hosts,
            settings.least,
            most,
            timeout=settings.timeout_s,
            reset_limit=settings.reset_limit,
        )

    def start(self) -> None:
        """Waits for the fewest. Raises LaunchError where they do not come in time."""
        from horovod.runner.common.util.timeout import TimeoutException
        from horovod.runner.elastic.rendezvous import create_rendezvous_handler

        port = self._rendezvous.start(create_rendezvous_handler(self._driver))
        self._rendezvous._httpd.daemon_threads = True  # some wait for ranks that do not come
        try:
            self._driver.wait_for_available_slots(self._settings.least)
        except (TimeoutException, RuntimeError) as error:
            raise LaunchError(self.too_few()) from error
        self._environment = self._environment_of(port)
        resume = self._driver.resume

        def resumed() -> None:
            try:
                resume()
            except Exception as error:
                self.unable = error
                raise

        self._driver.resume = resumed  # Horovod itself only logs the error
        self._driver.start(self._settings.least, self._serve)

    def finished(self) -> bool:
        return bool(self._driver.finished())

    def results(self) -> tuple[str | None, list[int]]:
        """Horovod's error, if it has one, and the exit codes of the last workers."""
        results = self._driver.get_results()
        return results.error_message, [code for code, _ in results.worker_results.values()]

    def too_few(self) -> str:
        there, least = len(self.hosts.find_available_hosts_and_slots()), self._settings.least
        return (
            f"executor.min_workers={least}: after executor.timeout_s={self._settings.timeout_s} there was room for "
            f"{there}; type executor.min_workers={max(1, there)}"
        )

    def close(self) -> None:
        """End the processes, whatever they do, and Horovod's threads and server."""
        import ray

        self._closed.set()
        for process in self._processes.values():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(process)
        if not self._driver.finished():
            self._driver.stop()
        self._rendezvous._httpd.socket.close()

    def _environment_of(self, port: int) -> dict[str, Any]:
        """How the ranks find each other."""
        import ray
        from horovod.ray.runner import MiniSettings
        from horovod.ray.utils import detect_nics
        from horovod.runner.gloo_run import create_run_env_vars

        horovod, server, addresses = self._job.experiment.horovod, "127.0.0.1", ["127.0.0.1"]
        if not self._is_local:
            server = ray.util.get_node_ip_address()
            addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        nics = set(horovod.nics) if horovod.nics else None
        found = detect_nics(MiniSettings(timeout_s=horovod.timeout_s, nics=nics), addresses)
        environment: dict[str, Any] = create_run_env_vars(server, found, port, elastic=True)
        return environment

    def _serve(self, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        """A worker's process from its start to its end, in a thread of Horovod's: (exit code, when)."""
        import ray
        from horovod.runner.gloo_run import create_slot_env_vars
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place, resources = slot.hostname, self._job.plan.resources
        environment = {**self._environment, **create_slot_env_vars(slot)}
        options = {
            "num_cpus": resources.cpus_per_worker,
            "num_gpus": resources.gpus_per_worker,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(self.hosts.nodes[place], soft=False),
        }
        process = ray.remote(Process).options(**options).remote()
        self._processes[place] = process
        pending = process.serve.remote(
            place, {key: str(value) for key, value in environment.items()}, self._config
        )
        while not (self._closed.is_set() or any(event.is_set() for event in events)):
            if not ray.wait([pending], timeout=POLL_SECONDS)[0]:
                continue
            try:
                ray.get(pending)
                return 0, time.time()
            except Exception as error:  # noqa: BLE001 (told with the next change of the workers)
                if self._driver.has_rank_assignment(place, slot.local_rank):  # else its host was taken away
                    self.lost.append(account_of(error))
                    self.hosts.lost(place)
                break
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(process)  # one that raised an error is still connected, and the others would wait for it
        return 1, time.time()


class Process:
    """What runs a worker: an actor."""

    def serve(self, place: str, environment: dict[str, str], config: dict[str, Any]) -> None:
        import os

        os.environ |= environment
        from runner.executors import elastic_rank

        elastic_rank.serve(place, config)
