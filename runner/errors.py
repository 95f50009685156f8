"""The errors a user sees: one line that says what is wrong and what to type instead.

Each class carries the exit code of the process. All of them pickle (Ray and subprocesses carry them), so their
only state is the message.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RUNNER = Path(__file__).resolve().parent
NOT_FINITE = "is not finite"  # in the message of a training that diverged


class RunnerError(Exception):
    """Anything runner refuses or reports; the message is one line a user can act on."""

    exit_code = 1


class ConfigError(RunnerError):
    """The composed config is wrong; found before anything is launched."""

    exit_code = 2


class PreflightError(RunnerError):
    """The config is sound, but this machine or cluster cannot run it."""

    exit_code = 2


class LaunchError(RunnerError):
    """The workers could not be started."""


class TrainingError(RunnerError):
    """A rank failed while it trained."""


def refuse(key: str, value: Any, allowed: str, instead: str | None = None) -> ConfigError:
    """The one form of a config error: key, value, what is allowed, what to type."""
    line = f"{key}={value}: {allowed}"
    return ConfigError(f"{line}; type {instead}" if instead else line)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate a user most likely meant, or None when nothing is close."""
    matches = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def own_line(error: BaseException) -> str:
    """file:line of the innermost frame that is neither runner's nor an installed package's: the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and not Path(frame.filename).is_relative_to(RUNNER)
    ]
    frame = (own or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}"
