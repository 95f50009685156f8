"""`python -m runner doctor [key=value …] [--json]`: the checks before a launch, a line each: passed, or what to type.

All of them, also where one has failed, of the training that `python -m runner [key=value …]` would start. Runs whose
driver was killed are marked FAILED on the way, and those that MLflow does not have whole are named.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Sequence

from packaging.requirements import Requirement

from runner.checks import FAILED, PASSED, SKIPPED, Checks, Outcome
from runner.errors import PreflightError, RunnerError
from runner.prepare import prepare
from runner.recording import end_lost_runs, end_lost_sweeps, left
from runner.report.console import Screen, relative
from runner.request import Request
from runner.schema import CHECKS

JSON = "--json"
NOT_REACHED = "not looked at: it needs what failed"


def doctor(arguments: Sequence[str], compose: Callable[[Sequence[str]], Request], screen: Screen) -> int:
    """Returns the exit code: 0 where all is well, else that of a refusal. Raises ConfigError for a config that is none."""
    request = compose([argument for argument in arguments if argument != JSON])
    checks = Checks(request.experiment.skip_checks, keep_going=True)
    checks.run("packages", check_packages)
    as_json = JSON in arguments
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        outcomes = examined(request, checks)  # in which the user's code may print
    runs: list[str] = []
    end_lost_runs(request.outputs, runs.append)
    end_lost_sweeps(request.outputs)
    runs += [
        f"{relative(run)}: not all of it is in MLflow; type python -m runner sync"
        for run in left(request.outputs)
    ]
    failed = any(outcome.status == FAILED for outcome in outcomes)
    if as_json:
        keys = ("name", "status", "text", "seconds")
        found = [{key: getattr(each, key) for key in keys} for each in outcomes]
        screen.line(json.dumps({"ok": not failed, "checks": found, "runs": runs}, indent=2))
    else:
        for each in outcomes:
            screen.line(f"{each.status:<5} {each.name:<10} {each.text}  ({each.seconds:.1f} s)")
        for line in runs:
            screen.line(line)
    return PreflightError.exit_code if failed else 0


def examined(request: Request, checks: Checks) -> list[Outcome]:
    """The outcomes, and what else keeps the training from being launched as the last one."""
    try:
        plan = prepare(request, checks).plan
    except RunnerError as error:
        checks.join()
        outcomes = checks.outcomes
        if all(outcome.error is not error for outcome in outcomes):
            outcomes.append(Outcome("plan", FAILED, str(error), 0.0, error))
    else:
        outcomes = [*checks.outcomes, Outcome("plan", PASSED, "; ".join(plan.lines()), 0.0)]
    missing = [
        name for name in (*CHECKS, "data", "plan") if all(outcome.name != name for outcome in outcomes)
    ]
    reasons = {"nodes": "no cluster"} if request.experiment.scaling.address is None else {}
    return [*outcomes, *(Outcome(name, SKIPPED, reasons.get(name, NOT_REACHED), 0.0) for name in missing)]


def check_packages() -> str:
    """What is installed are the versions that runner is made for. Raises PreflightError."""
    for line in importlib.metadata.requires("runner") or ():
        needed = Requirement(line)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(needed.name)
        except importlib.metadata.PackageNotFoundError:
            raise PreflightError(f"{needed.name} is not installed; type make setup") from None
        if not needed.specifier.contains(version, prereleases=True):
            raise PreflightError(
                f"{needed.name} is {version}, runner needs {needed.specifier}; type make setup"
            )
    names = ("torch", "ray", "mlflow", "hydra-core")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    return f"Python {platform.python_version()}, {versions}"
