"""How `ray.init` starts Ray's processes on this machine: out of the driver's process group, and only those that are used."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

LOOK_SECONDS, WAIT_SECONDS = 0.02, 30.0


@contextmanager
def own_process_groups() -> Iterator[None]:
    """What `ray.init` starts here is not of the driver's process group: a Ctrl-C, or a SIGTERM of `timeout` or a scheduler, is
    for the driver to act on. A raylet that ended first would take the driver with it, by _Exit and without a final status.
    """
    from ray._private import services

    with replaced(services, "ConsolePopen", functools.partial(services.ConsolePopen, process_group=0)):
        yield


@contextmanager
def lean() -> Iterator[None]:
    """A local Ray in 1.4 instead of 2.6 s: without the server of the dashboard that is off, the autoscaler of a machine that
    does not grow, and the reader of logs that nobody gets; and Ray looks whether the node is there more often than once a second.
    """
    from ray._private import services
    from ray._private.node import Node

    with ExitStack() as stack:
        for name in ("start_api_server", "start_monitor", "start_log_monitor"):
            stack.enter_context(replaced(Node, name, lambda self, **options: None))
        stack.enter_context(replaced(services, "get_node", _awaited(services.get_node)))
        yield


def silence() -> None:
    """Of a lost worker Ray prints a thousand characters on the driver; what it comes to is said by us (diagnosis.py)."""
    from ray._private import worker

    worker.print_to_stdstream = lambda *arguments, **options: None


def _awaited(get_node: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
    """Called when the node is there, or after WAIT_SECONDS, to say what is wrong."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    def get(gcs_address: str, node_id: str) -> Any:
        client, deadline = GcsClient(address=gcs_address), time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if any(found.hex() == node_id for found in client.get_all_node_info(timeout=WAIT_SECONDS)):
                break
            time.sleep(LOOK_SECONDS)
        return get_node(gcs_address, node_id)

    return get


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """An attribute, meanwhile."""
    before = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, before)
