"""What a run came from: code version and environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path


def git_state(directory: Path) -> tuple[str | None, str]:
    """(commit, diff against it) of the checkout that holds `directory`; (None, "") outside of one."""
    commit = _git(directory, "rev-parse", "HEAD")
    return (commit.strip(), _git(directory, "diff", "HEAD") or "") if commit else (None, "")


@cache
def environment() -> str:
    """JSON: interpreter, platform, CPUs and the version of every installed package."""
    packages = {found.name: found.version for found in importlib.metadata.distributions() if found.name}
    facts = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }
    return json.dumps(facts, indent=2)


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
