"""`python -m runner sync`: bring to MLflow what runs could not record while it did not answer.

All runs under outputs/ that nobody is training, or those of `run_dir=…`. A line a run; exit code 1 where something is
left. `tracking.uri=…` has the user and password of a store, which runs do not keep; it chooses none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path

from runner.errors import ConfigError
from runner.recording import end_lost_run, left
from runner.report.console import Screen, relative
from runner.run_folder import RUN, is_free, lost, name_run, read_result, take
from runner.secrets import MASK
from runner.tracking import left_over
from runner.tracking.spool import Address
from runner.tracking.store import ANSWER_SECONDS, silence_of

USAGE = "python -m runner sync [run_dir=<folder of a run>]"


def sync(arguments: list[str], screen: Screen) -> int:
    """Returns the exit code. Raises ConfigError for other arguments, or a folder that is not there."""
    outputs = Path.cwd() / "outputs"
    if not arguments:
        for run_dir in lost(outputs):
            with suppress(ConfigError), take(run_dir, seconds=0):
                if read_result(run_dir) is None:
                    end_lost_run(run_dir)
    named = [argument for argument in arguments if not argument.startswith("tracking.uri=")]
    folders = [folder_of(argument) for argument in named] or left(outputs)
    silent: dict[str, str | None] = {}  # why each store does not answer
    outcomes = []
    for folder in folders:
        why_not = deliver(folder, silent)
        outcomes.append(why_not)
        screen.line(f"{relative(folder)}: {f'not yet: {why_not}' if why_not else 'everything is in MLflow'}")
    if not folders:
        screen.line("everything is in MLflow")
    return 1 if any(outcomes) else 0


def folder_of(argument: str) -> Path:
    key, _, value = argument.partition("=")
    folder = Path(value).absolute()
    if key != "run_dir":
        raise ConfigError(f"sync: {argument} is no argument of it; type {USAGE}")
    if not os.path.exists(folder / RUN):  # noqa: PTH110 (Path.exists raises where a name is too long)
        raise ConfigError(f"run_dir={value}: not the folder of a run: it has no {RUN}; type {USAGE}")
    return folder


def deliver(folder: Path, silent: dict[str, str | None]) -> str | None:
    """Why not everything is delivered, in a few words; None where it is."""
    address = Address.read(folder)
    if address is None:
        return None
    if MASK in address.uri:
        return f"who may write to {address.uri} is not stored; type sync tracking.uri=… with its user and password"
    if not is_free(folder):
        return "it is still being trained"
    if address.uri not in silent:
        silent[address.uri] = silence_of(address.uri, ANSWER_SECONDS)
    if silent[address.uri]:
        return f"MLflow at {address.uri} does not answer ({silent[address.uri]})"
    try:
        with take(folder, seconds=0):
            outcome = left_over.deliver_left(folder, partial(name_run, folder))
    except ConfigError as error:  # somebody else was faster
        return str(error)
    if outcome.outage:
        return outcome.outage
    return f"MLflow refused a part of it for good: {outcome.refused[0]}" if outcome.refused else None
