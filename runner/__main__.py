"""The one door: `python -m runner [verb] overrides…`; without a verb, train.

Hydra does the command line (--multirun, --cfg, --help, --config-dir, tab completion); the verb is the first argument
when it has no `=` and no leading dash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from runner import config, interrupts, secrets
from runner.errors import ConfigError, RunnerError, nearest, refuse
from runner.executors import ray_cluster
from runner.executors.launched import Launch, launched, told
from runner.report.console import Screen, error_line
from runner.request import Request
from runner.reword import EXPECTED, flags_and_overrides, reword
from runner.run_folder import write_composed
from runner.sweep_schema import Method
from runner.verbs.train import train

if TYPE_CHECKING:
    from runner.sweep.job import Compose
    from runner.sweep.sweep import OpenSource

PROJECT = Path(__file__).resolve().parents[1]
CONF = PROJECT / "conf"
VERBS = ("train", "resume", "prove", "doctor", "sync", "leaderboard")
PRINTING = ("--cfg", "-c", "--info", "-i")  # flags with which Hydra prints the config


def main() -> None:
    """Run the command line and exit with 0, 1 (failed), 2 (refused), 130 or 143 (interrupted)."""
    secrets.mask_output()
    launch = launched()
    code = command() if launch is None else command_of(launch)
    # Not sys.exit: Python would look through all of torch and Ray for garbage, which takes seconds, and a library whose
    # threads are still there (Arrow's) may abort the process, with another code.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def command_of(launch: Launch) -> int:
    """Of several processes with this command line rank 0 is the driver; the others train with it, or do nothing."""
    if launch.unknown is not None:
        return command() if launch.rank == 0 else 0
    from runner.executors.apart import go_on_below

    go_on_below()
    if launch.rank:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # horovodrun's, where rank 0 has refused
        from runner.executors.horovodrun import follow

        return follow(launch)
    from runner.executors.other_ranks import lead

    lead(launch)
    return command()


def command() -> int:
    """Run the command line; every error is told. Returns the exit code."""
    full_trace = bool(os.environ.get("HYDRA_FULL_ERROR")) or "verbose=true" in sys.argv
    interrupts.install()
    try:
        code = run(sys.argv[1:])
    except RunnerError as error:
        code = error.exit_code
        if full_trace:
            traceback.print_exc()
        error_line(error)
    except KeyboardInterrupt:
        code = _interrupted()
    ray_cluster.stop()
    return code


def run(arguments: list[str]) -> int:
    """Everything but the exit: returns the exit code or raises RunnerError."""
    secrets.learn_from_process(arguments)
    verb = "train"
    if arguments and "=" not in arguments[0] and not arguments[0].startswith(("-", "+", "~")):
        verb, *arguments = arguments
        if verb not in VERBS:
            close = nearest(verb, VERBS)
            known = f"verbs are {', '.join(VERBS)}, overrides are key=value"
            raise ConfigError(f"{verb}: no such verb; {known}" + (f"; type {close}" if close else ""))
    if (launch := launched()) is not None:
        arguments = told(launch, verb, arguments)
    roots = import_roots(arguments)
    sys.path[:] = [*roots, *(path for path in sys.path if path not in ("", *roots))]
    config.register_schema()
    if verb == "resume":
        from runner.verbs.resume import resume

        resume(arguments, roots, Screen())
        return 0
    if verb == "sync":
        from runner.verbs.sync import sync

        return sync(arguments, Screen())
    if verb == "leaderboard":
        from runner.verbs.leaderboard import leaderboard

        return leaderboard(arguments, Screen())
    if verb == "prove":
        from runner.verbs.prove import prove

        return prove(arguments, lambda overrides: request_of(overrides, roots), Screen())
    if verb == "doctor":
        from runner.verbs.doctor import doctor

        return doctor(arguments, lambda overrides: request_of(overrides, roots), Screen())
    jobs = Jobs(roots)
    flags, overrides = flags_and_overrides(arguments)
    sys.argv[1:] = [*flags, *overrides, *unnamed_secrets(overrides)]
    if any(flag.startswith(PRINTING) for flag in flags):
        learn_from_config(flags, overrides, roots)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, instead of printing several lines and exiting
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(jobs)()
    except EXPECTED as error:
        raise reword(error, overrides, composing(config_dirs(flags)[0])) from error
    return jobs.finish()


class Jobs:
    """What Hydra calls with the composed config of one job, and our launcher with those of a sweep."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self._roots, self._screen = roots, Screen()
        self._error: Exception | None = None
        self._code = 0

    def __call__(self, composed: DictConfig) -> None:
        settings = HydraConfig.get()
        overrides = secrets.masked(tuple(map(str, settings.overrides.task)))
        run_dir = Path(settings.runtime.output_dir)
        try:
            request = Request.of(composed, overrides, run_dir, self._roots)
            method = request.experiment.search.method
            if method is not Method.grid:
                raise refuse("search.method", method.value, "it searches over several jobs", "--multirun")
            hydra_node = OmegaConf.create({"hydra": OmegaConf.to_container(settings, resolve=False)})
            write_composed(run_dir / ".hydra", request.yaml, overrides, config.to_yaml(hydra_node))
            if not request.experiment.dry_run:
                from runner.verbs.resume import continued

                request = continued(request, self._screen)
            train(request, self._screen)
        except Exception as error:  # noqa: BLE001 (kept from Hydra, which would print it in its own way)
            self._error = error

    def sweep(
        self,
        compose: Compose,
        folder: Path,
        typed: Sequence[str],
        first: Sequence[str],
        common: Sequence[str],
        open_source: OpenSource,
        yaml: str,
    ) -> dict[int, float | None]:
        """Called by the launcher, for a sweeper of somebody else's once a batch; the monitored values by job."""
        from runner.sweep.sweep import Sweep

        sweep = Sweep(compose, self._roots, folder, self._screen, first, common, yaml)
        code, values = sweep.run(typed, open_source)
        self._code = max(self._code, code)
        return values

    def finish(self) -> int:
        if self._error is not None:
            raise self._error
        return self._code


def import_roots(arguments: list[str]) -> tuple[str, ...]:
    """Where code is imported from: this project first, then the current directory and --config-dir's parent."""
    folders, _ = config_dirs(arguments)
    return tuple(dict.fromkeys([str(PROJECT), str(Path.cwd()), *(str(folder.parent) for folder in folders)]))


def config_dirs(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders of --config-dir, and the other arguments."""
    folders, others = [], []
    given = iter(arguments)
    for argument in given:
        name, _, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folders.append(Path(value or next(given, "")).absolute())
        else:
            others.append(argument)
    return folders, others


def request_of(arguments: Sequence[str], roots: tuple[str, ...]) -> Request:
    """The job that `python -m runner <arguments>` would run, in a folder that it does not make. Raises ConfigError."""
    folders, overrides = config_dirs(arguments)
    compose = composing(folders)
    try:
        composed = compose(overrides)
    except EXPECTED as error:
        raise reword(error, overrides, compose) from error
    run_dir = Path.cwd() / "outputs" / "runs" / "composed"
    return Request.of(composed, secrets.masked(tuple(overrides)), run_dir, roots)


def composing(folders: Sequence[Path]) -> Callable[[Sequence[str]], DictConfig]:
    """What composes overrides, with further folders of configs."""
    search = [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"] if folders else []

    def compose(overrides: Sequence[str]) -> DictConfig:
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra.compose("config", overrides=[*overrides, *search])

    return compose


def learn_from_config(flags: Sequence[str], overrides: Sequence[str], roots: tuple[str, ...]) -> None:
    """The secrets of a config that Hydra prints without showing it to us first."""
    folders, _ = config_dirs(flags)
    with contextlib.suppress(ConfigError):  # Hydra finds it too
        request_of([*(f"--config-dir={folder}" for folder in folders), *overrides], roots)


def unnamed_secrets(arguments: Sequence[str]) -> list[str]:
    """The override that keeps secrets of the command line out of folders that are named after it."""
    keys = [
        argument.lstrip("+~").partition("=")[0]
        for argument in arguments
        if secrets.masked(argument) != argument
    ]
    return [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(keys)}]"] if keys else []


def _interrupted() -> int:
    """End within seconds, though Ray may have got the signal too and answer nothing any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    error_line("terminated by SIGTERM" if interrupts.is_termination() else "interrupted by Ctrl-C")
    ray_cluster.abandon()
    sys.stdout.flush()
    os._exit(143 if interrupts.is_termination() else 130)


if __name__ == "__main__":
    main()
