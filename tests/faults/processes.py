"""Who is left of a command: processes are known by a variable of their environment, which children inherit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

TOKEN = "RUNNER_FAULTS"
Alive = dict[int, str]  # command line by pid


def with_token(token: str) -> Alive:
    """Processes that were started with TOKEN=token, without those that only wait to be reaped."""
    wanted = f"{TOKEN}={token}".encode()
    found: Alive = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # gone meanwhile, or somebody else's
                continue
    return {pid: line for pid, line in found.items() if is_alive(pid)}


def is_alive(pid: int) -> bool:
    """Whether it runs or is stopped: a zombie is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids: set[int], seconds: float = 10.0) -> float:
    """Seconds until none of them is alive. Fails after `seconds`."""
    started = time.monotonic()
    while left := {pid for pid in pids if is_alive(pid)}:
        if time.monotonic() - started > seconds:
            raise AssertionError(
                f"still there after {seconds} s: {[psutil.Process(pid).cmdline() for pid in left]}"
            )
        time.sleep(0.05)
    return time.monotonic() - started
