"""The end of a sweep: its exit code and status, and what is reported of its jobs."""

import io
import types

import pytest
from rich.console import Console

from runner.report.console import Screen
from runner.schema import Study
from runner.sweep.best import Best
from runner.sweep.parent import Store
from runner.sweep.sweep import Sweep
from tests.executions import PREPARED
from tests.fakes import make_experiment
from tests.sweeps import Record, job_of

DIVERGED = "rank 0: step 3: the loss of rank 0 is not finite; type a lower optimizer.lr"
STUDY = {"study": Study.lr_scaling}


class Parent:
    def __init__(self):
        self.record, self.closed = Record(), None

    def close(self, status, at_most):
        self.closed = status, at_most


def ended(folder, results, settings=None, status=None):
    """(exit code, how the parent was closed, what was printed) of jobs with these losses or errors."""
    file, parent = io.StringIO(), Parent()
    sweep = object.__new__(Sweep)  # without composing and checking: as far as its end goes
    sweep._screen, sweep._folder = Screen(Console(file=file, soft_wrap=True, highlight=False)), folder
    sweep._store, sweep._first = Store(None), job_of(folder, settings=settings)
    sweep._settings = make_experiment(settings)
    execution = types.SimpleNamespace(best=Best(PREPARED.plan.goal), results={})
    for number, end in results.items():
        failed = {"status": "FAILED", "best": {}, "error": end}
        done = {"status": "FINISHED", "best": {"val/loss": end}}
        result = {"run_id": None, "metrics": {}, **(failed if isinstance(end, str) else done)}
        execution.results[number] = job_of(folder, number, (f"seed={number}",), settings), result
    return sweep._finish(execution, parent, status), parent.closed, file.getvalue()


@pytest.mark.parametrize(
    ("results", "settings", "code"),
    [
        ({0: 0.5, 1: 0.25}, {}, 0),
        ({0: 0.5, 1: "rank 1 was killed"}, {}, 1),
        ({0: 0.5, 1: DIVERGED}, {}, 1),
        ({0: 0.5, 1: DIVERGED}, STUDY, 0),  # that it diverged is a result of a study
        ({0: 0.5, 1: "rank 1 was killed"}, STUDY, 1),
        ({}, {}, 0),
    ],
)
def test_a_sweep_with_a_failed_job_has_failed(tmp_path, results, settings, code):
    found, closed, printed = ended(tmp_path / "sweep", results, settings)
    assert found == code
    assert closed == ("FAILED" if code else "FINISHED", None)
    assert (tmp_path / "sweep/study").exists() == bool(settings)
    assert ("study of LR scaling" in printed) == bool(settings)


def test_an_interrupted_study_reports_the_jobs_that_ended(tmp_path):
    _, (status, at_most), printed = ended(tmp_path / "sweep", {1: 0.5}, STUDY, "KILLED")
    assert status == "KILLED"
    assert at_most is not None  # an interrupted user waits
    assert "0.5000 ± n/a (1)" in printed
    assert not (tmp_path / "sweep/leaderboard").exists()
