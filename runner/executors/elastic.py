"""Elastic training: Horovod's elastic driver on Ray. Workers come and go, and the training goes on from its last commit in memory.

Use it where machines are taken away and come back (spot instances, a shared cluster), or for a long training that more workers
may join. Not where the number of workers is fixed: the default restarts a lost worker too, and copies nothing between checkpoints.
Not for dataset.ingest=ray_data. Horovod's rendezvous server listens on all interfaces without authentication: for networks you trust.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from typing import Any

from runner import secrets
from runner.diagnosis import account_of, diagnose
from runner.errors import LaunchError, TrainingError, first_line
from runner.executors import ray_cluster
from runner.executors.attempts import EndedError, persistently
from runner.executors.board import Board, started
from runner.executors.hosts import Hosts
from runner.executors.session import collect
from runner.job import Job, Memory, Received, Restarted
from runner.plan import Plan
from runner.resize import line
from runner.resources import workers_in_words

POLL_SECONDS = 0.1
SPARE_CALLS = 8  # of the board, besides those of the ranks


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job`; `received` gets rank 0's reports, and a line for each change of the workers. Raises TrainingError with the cause.

    Where all workers are lost the training starts again from its last checkpoint, `trainer.max_failures` times.
    """
    persistently(job, lambda is_restart: Elastic(job, memory, received, is_restart).train(), restarted)


class Elastic:
    """One training, on the driver."""

    def __init__(self, job: Job, memory: Memory, received: Received, is_restart: bool) -> None:
        import ray
        from horovod.runner.elastic.driver import ElasticDriver
        from horovod.runner.http.http_server import RendezvousServer

        settings, scaling = job.experiment.executor, job.experiment.scaling
        self._job, self._received, self._settings = job, received, settings
        most = settings.max_workers or scaling.num_workers
        self._is_local = ray_cluster.cluster_address(scaling.address) is None
        cooldown = (settings.cooldown_s[0], settings.cooldown_s[1]) if settings.cooldown_s else None
        self._hosts = Hosts(job.plan.resources, most, self._is_local, settings.discovery, cooldown)
        self._node = ray.get_runtime_context().get_node_id()
        name = f"elastic-{uuid.uuid4().hex[:12]}"
        self._board = started(Board, name, most + SPARE_CALLS)
        open_job, kept = secrets.hide(job)
        self._config = {
            "board": name,
            "job": open_job,
            "secrets": ray.put(kept),
            "memory": ray.put(memory),
            "is_restart": is_restart,
            "node": self._node,
        }
        self._size: int | None = None  # workers that train
        self._since, self._seen = time.time(), 0
        self._lost: list[str] = []  # Ray's accounts of workers, since the last change
        self._failed: list[str] = []  # places whose rank raised an error
        self._changes: list[str] = []
        self._unable: Exception | None = None  # why Horovod could not go on
        self._ranks: dict[str, Any] = {}  # actors by place
        self._closed = threading.Event()
        logging.getLogger().addHandler(logging.NullHandler())  # else Horovod's lines would be on the screen
        self._rendezvous = RendezvousServer(0)
        self._driver: Any = ElasticDriver(
            self._rendezvous,
            self._hosts,
            settings.min_workers,
            most,
            timeout=settings.timeout_s,
            reset_limit=settings.reset_limit,
        )

    def train(self) -> None:
        """Raises EndedError where the ranks failed, TrainingError where the training must not go on."""
        try:
            self._start()
            while not self._driver.finished():
                self._take()
            self._take()
            collect(self._job.run_dir, self._node)
            self._finish()
        finally:
            self._close()

    def _start(self) -> None:
        import ray
        from horovod.ray.runner import MiniSettings
        from horovod.ray.utils import detect_nics
        from horovod.runner.common.util.timeout import TimeoutException
        from horovod.runner.elastic.rendezvous import create_rendezvous_handler
        from horovod.runner.gloo_run import create_run_env_vars

        horovod = self._job.experiment.horovod
        port = self._rendezvous.start(create_rendezvous_handler(self._driver))
        self._rendezvous._httpd.daemon_threads = True  # some wait for ranks that do not come
        try:
            self._driver.wait_for_available_slots(self._settings.min_workers)
        except (TimeoutException, RuntimeError) as error:
            raise LaunchError(self._too_few()) from error
        addresses = ["127.0.0.1"]
        if not self._is_local:
            addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        settings = MiniSettings(timeout_s=horovod.timeout_s, nics=set(horovod.nics) if horovod.nics else None)
        nics = detect_nics(settings, addresses)
        server = "127.0.0.1" if self._is_local else ray.util.get_node_ip_address()
        self._environment = create_run_env_vars(server, nics, port, elastic=True)
        resume = self._driver.resume

        def resumed() -> None:
            try:
                resume()
            except Exception as error:
                self._unable = error
                raise

        self._driver.resume = resumed
        self._driver.start(self._settings.min_workers, self._serve)

    def _serve(self, slot: Any, events: list[threading.Event]) -> tuple[int, float]:
        """A rank's process from its start to its end, in a thread of Horovod's: (exit code, when)."""
        import ray
        from horovod.runner.gloo_run import create_slot_env_vars
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place, resources = slot.hostname, self._job.plan.resources
        environment = {**self._environment, **create_slot_env_vars(slot)}
        rank = (
            ray.remote(Process)
            .options(
                num_cpus=resources.cpus_per_worker,
                num_gpus=resources.gpus_per_worker,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self._hosts.nodes[place], soft=False),
            )
            .remote()
        )
        self._ranks[place] = rank
        pending = rank.serve.remote(
            place, {key: str(value) for key, value in environment.items()}, self._config
        )
        code = 1
        while not (self._closed.is_set() or any(event.is_set() for event in events)):
            if not ray.wait([pending], timeout=POLL_SECONDS)[0]:
                continue
            try:
                ray.get(pending)
                code = 0
            except Exception as error:  # noqa: BLE001 (told with the next change of the workers)
                self._lost.append(account_of(error))
                self._hosts.lost(place)
            break
        if code:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(rank)
        return code, time.time()

    def _take(self) -> None:
        """What the ranks have said by now."""
        import ray

        try:
            events = ray.get(self._board.events.remote(self._seen, POLL_SECONDS))
        except ray.exceptions.RayError as error:
            raise EndedError(f"the ranks' board is gone: {first_line(error)}") from error
        self._seen += len(events)
        for what, *rest in events:
            if what == "began":
                self._began(*rest)
            elif what == "failed":
                self._fails(*rest)
            elif "resumed" in rest[0] and self._changes:
                self._received({**rest[0], "event": ""})  # said where it began
            else:
                self._received(rest[0])

    def _began(self, plan: Plan, step: int) -> None:
        """Ranks train by this plan from that step on."""
        size = plan.num_workers
        before, self._size = self._size, size
        if before is None and size == self._job.plan.num_workers:
            return  # as any training
        values: dict[str, Any] = {}
        if before is not None and self._lost:
            why = self._cause(before)
            if self._failed:
                values["degraded"] = why
                why = f"degraded: {why}"
        elif before is None:
            why = f"{workers_in_words(size)} of {self._job.plan.num_workers} are there"
        else:
            change = size - before
            why = f"{workers_in_words(abs(change))} {'joined' if change > 0 else 'left'}"
        self._lost, self._failed, self._since = [], [], time.time()
        self._changes.append(f"{why}; {line(plan, step, before)}")
        self._received({**values, "event": self._changes[-1], "changes_of_workers": list(self._changes)})

    def _fails(self, place: str, rank: int) -> None:
        """A rank raised an error of its own, which would come again: its place stays empty."""
        self._hosts.ban(place)
        self._failed.append(place)
        if self._hosts.left < self._settings.min_workers:
            raise EndedError(f"rank {rank} failed")

    def _cause(self, size: int) -> str:
        collect(self._job.run_dir, self._node)
        return str(diagnose(self._job.run_dir, size, self._since, "\n".join(self._lost)).error)

    def _finish(self) -> None:
        results = self._driver.get_results()
        if results.error_message is not None:
            limit = f"the workers changed more often than executor.reset_limit={self._settings.reset_limit}"
            raise TrainingError(f"{limit}; the last time: {self._cause(self._size or 0)}")
        if type(self._unable).__name__ == "TimeoutException":
            raise TrainingError(f"{self._too_few()}; lost: {self._cause(self._size or 0)}")
        codes = [code for code, _ in results.worker_results.values()]
        if self._unable or not codes or any(codes):
            raise EndedError("\n".join(self._lost) or str(self._unable))

    def _too_few(self) -> str:
        there, least = len(self._hosts.find_available_hosts_and_slots()), self._settings.min_workers
        return (
            f"executor.min_workers={least}: after executor.timeout_s={self._settings.timeout_s} there was room for "
            f"{there}; type executor.min_workers={max(1, there)}"
        )

    def _close(self) -> None:
        """End the ranks, whatever they do, and Horovod's threads and server."""
        import ray

        self._closed.set()
        for rank in self._ranks.values():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(rank)
        if not self._driver.finished():
            self._driver.stop()
        self._rendezvous._httpd.socket.close()
        ray.kill(self._board)


class Process:
    """What runs a rank: an actor."""

    def serve(self, place: str, environment: dict[str, str], config: dict[str, Any]) -> None:
        import os

        os.environ |= environment
        from runner.executors import elastic_rank

        elastic_rank.serve(place, config)
