"""Where the ranks of a launch find their rank 0: in horovodrun's store of keys and values, by HTTP.

Whoever reaches it can read and write it, as Horovod itself does: it is for networks that are trusted.
"""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from typing import Any

from runner.errors import LaunchError
from runner.executors.launched import STORE

PATH = "runner/driver"
FIND_SECONDS, POLL_SECONDS, REQUEST_SECONDS = 300.0, 0.1, 10.0
INTERFACE = "HOROVOD_GLOO_IFACE"  # of the network that horovodrun has chosen

_direct = urllib.request.build_opener(
    urllib.request.ProxyHandler({})
)  # the user's proxy is for other networks


def own_address() -> str:
    """This host's, on the network of the launch."""
    import psutil

    found = psutil.net_if_addrs().get(os.environ.get(INTERFACE, ""), [])
    return next((each.address for each in found if each.family == socket.AF_INET), socket.gethostname())


def leave(address: Any, key: bytes) -> None:
    """Raises LaunchError where the launcher is gone."""
    content = json.dumps([*address, key.hex()]).encode()
    try:
        with _direct.open(urllib.request.Request(_url(), content, method="PUT"), timeout=REQUEST_SECONDS):
            pass
    except OSError as error:
        raise LaunchError(f"horovodrun does not answer ({error})") from error


def find() -> tuple[str, int, bytes] | None:
    """Waits until rank 0 has left its address; None where the launcher is gone. Raises LaunchError after FIND_SECONDS."""
    deadline = time.monotonic() + FIND_SECONDS
    while time.monotonic() < deadline:
        try:
            with _direct.open(_url(), timeout=REQUEST_SECONDS) as answer:
                host, port, key = json.load(answer)
                return host, port, bytes.fromhex(key)
        except urllib.error.HTTPError:  # not yet
            time.sleep(POLL_SECONDS)
        except OSError:
            return None
    raise LaunchError(f"rank 0 has not begun within {FIND_SECONDS:g} s")


def _url() -> str:
    return f"http://{os.environ[STORE[0]]}:{os.environ[STORE[1]]}/{PATH}"
