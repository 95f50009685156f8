"""The errors a user sees: one line that says what is wrong and what to type instead.

Each class carries the exit code of the process. All of them pickle (Ray and subprocesses carry them), so their
only state is the message.
"""

from __future__ import annotations

import copyreg
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

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__: Ray Data puts lines of its own behind the message, and whoever receives it takes them off.
        return copyreg.__newobj__, (type(self), *self.args)  # type: ignore[attr-defined]


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


def one_line(text: str) -> str:
    """The text without line breaks; other characters that a terminal would act on, or not show, are escaped.

    Messages quote what users typed, what files hold and what other packages say.
    """
    joined = " ".join(line.strip() for line in text.splitlines())
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in joined)


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


def first_line(error: BaseException) -> str:
    """Of what others say in many, or nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
