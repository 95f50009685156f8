"""Runs with faults: in this process on one warm Ray, or as a command where the driver itself is hit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from runner import __main__ as door
from runner.errors import RunnerError
from runner.report.console import Screen
from tests.faults import cells
from tests.faults.command import Command
from tests.faults.outcome import Outcome
from tests.faults.processes import gone
from tests.faults.table import Measured, lines

PROJECT = Path(__file__).parent / "project"
EXPERIMENT = (f"--config-dir={PROJECT}/configs", "experiment=faults")
Run = Callable[..., Outcome]
_measured: list[tuple[str, Measured]] = []  # with the test's name


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's working directory of all tests here, with one MLflow store; Ray is started in it once."""
    yield tmp_path_factory.mktemp("home")
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="session")
def here(home: Path) -> Run:
    """here(name, *overrides) → the outcome of a run in this process, in outputs/runs/faults/<name>."""

    def run(name: str, *overrides: str, verb: str | None = None) -> Outcome:
        run_dir = home / "outputs" / "runs" / "faults" / name
        arguments = [*EXPERIMENT, f"hydra.run.dir={run_dir}", f"model.folder={run_dir}/fault"]
        if verb:
            arguments = [verb, f"run_dir={run_dir}"]
        said: list[tuple[float, str]] = []
        line = Screen.line

        def timed(screen: Screen, text: str) -> None:
            said.append((time.time(), text))
            line(screen, text)

        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(home)
            patch.setattr(sys, "argv", ["runner"])
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(Screen, "line", timed)
            try:
                code = door.run([*arguments, *overrides])
            except RunnerError as error:
                code = error.exit_code
                said.append((time.time(), f"error: {error}"))
        outcome = Outcome(code, said, time.time(), run_dir, f"sqlite:///{home}/outputs/mlflow.db")
        gone({int(path.name.split("-")[2]) for path in run_dir.glob("fault/rank-*")} - {os.getpid()})
        return outcome

    return run


@pytest.fixture(scope="session")
def uninterrupted(here: Run) -> Callable[[int], Outcome]:
    """uninterrupted(num_workers) → the run with which those that had a fault are compared."""

    @cache
    def run(num_workers: int) -> Outcome:
        outcome = here(f"uninterrupted-{num_workers}", f"scaling.num_workers={num_workers}")
        assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
        return outcome

    return run


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Callable[[int, str], Measured]:
    """measure(row, fault) → where a test puts its figures for the table."""

    def begin(row: int, fault: str) -> Measured:
        _measured.append((request.node.nodeid, Measured(row, fault)))
        return _measured[-1][1]

    return begin


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    """command(folder, run_dir, *overrides) starts `python -m runner`; nothing of it is left after the test.

    With verb="resume" it goes on with the run in `run_dir`.
    """
    started: list[Command] = []

    def run(
        folder: Path, run_dir: Path, *overrides: str, verb: str | None = None, launcher: Sequence[str] = ()
    ) -> Command:
        begin = [verb, f"run_dir={run_dir}"] if verb else [*EXPERIMENT, f"model.folder={run_dir}/fault"]
        started.append(Command(folder, run_dir, *begin, *overrides, launcher=launcher))
        return started[-1]

    yield run
    for each in started:
        each.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", [])}
    table = lines((measured, nodeid in passed) for nodeid, measured in _measured)
    if table:
        terminalreporter.section("faults: what must hold, and what was measured")
        terminalreporter.write_line("\n".join(table))
    if executors := cells.lines():
        terminalreporter.section("executors: what was run with each")
        terminalreporter.write_line("\n".join(executors))
