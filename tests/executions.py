"""An execution of a sweep's jobs on the real pool: sessions and the training of a job are stand-ins, so that each ends as a test says."""

import io
import types
from dataclasses import replace

import pytest
from rich.console import Console

from runner.job import Job, Memory
from runner.report.console import Screen
from runner.report.sweep_screen import SweepScreen
from runner.resources import Machine
from runner.sweep.execution import Execution
from runner.sweep.pool import Pool
from runner.sweep.source import Listed
from tests.fakes import make_experiment
from tests.sweeps import job_of, prepared_of

ONE = {"scaling.num_workers": 1, "scaling.resources_per_worker.CPU": 1.0}
PREPARED = prepared_of(make_experiment(ONE))


class Session:
    """Trains as `ends` says by the number of the job: a loss that it reaches, an error, or what is called."""

    ends: dict
    trained: list  # (number, job) as they began

    def __init__(self, experiment, kind, folder, is_local):
        self.kind, self.is_open = kind, True

    def train(self, job, memory, received, is_restart, is_pruned, stopping):
        number = int(job.run_dir.name)
        Session.trained.append((number, job))
        end = Session.ends.get(number, 1.0)
        if isinstance(end, BaseException):
            raise end
        if callable(end):
            end = end(is_pruned, stopping)
        received({"history": [{"epoch": 1.0, "val/loss": 9.0}, {"epoch": 2.0, "val/loss": end}]})
        received({"best": {"epoch": 2.0, "val/loss": end}})

    def close(self):
        self.is_open = False


def train_job(request, prepared, screen, execute, draws_later):
    """As verbs/train.py does, without a record and a folder."""
    number = int(request.run_dir.name)
    result = {"run_id": f"run {number}", "status": "FINISHED", "metrics": {}, "best": {}}
    assert (request.parent_run_id, prepared.data) == ("the parent", "data")

    def received(values):
        for metrics in values.pop("history", ()):
            screen.measured(metrics, prepared.plan)
            result["metrics"] = metrics
        result.update(values)

    ranks = Job(
        prepared.experiment, prepared.plan, None, request.run_dir, None, None, request.run_dir, (), {}
    )
    execute(ranks, Memory({}), received, lambda count, why: None)
    if draws_later is not None:
        draws_later(lambda: None)
    return result


class Told(Listed):
    """Keeps what it is told, and asks as the test wants."""

    def __init__(self, jobs, first=0):
        super().__init__(jobs, first)
        self.heard, self.asked = [], []
        self.prune = lambda number, epochs, value: False

    def told(self, trial):
        self.heard.append(trial)

    def prunes(self, number, epochs, value):
        self.asked.append((number, epochs, value))
        return self.prune(number, epochs, value)


class Sweep:
    """An execution with all that is around it."""

    def __init__(self, folder, jobs, source=None, settings=None, cpus=1.0, checked=None):
        self.file = io.StringIO()
        self.source = source or Told([])
        self.pool = Pool(Machine(cpus), folder, None, is_shared=True)
        screen = SweepScreen(Screen(Console(file=self.file, soft_wrap=True, highlight=False)), len(jobs))
        self.execution = Execution(
            make_experiment(settings),
            self.source,
            jobs,
            checked or pytest.fail,
            types.SimpleNamespace(data=lambda experiment: "data"),
            types.SimpleNamespace(run_id="the parent", earlier=earlier),
            self.pool,
            PREPARED,
            {"common=1"},
            screen,
        )

    def run(self):
        self.execution.run()
        return {
            number: (result["status"], result["best"].get("val/loss"))
            for number, (_, result) in self.execution.results.items()
        }

    @property
    def printed(self):
        return self.file.getvalue()


def earlier(job):
    return {"run_id": "earlier", "status": "FINISHED", "best": {"val/loss": 0.25}, "metrics": {}}


def jobs_of(folder, count, **settings):
    return [
        replace(
            job_of(folder, number, (f"seed={number}", "common=1"), {**ONE, **settings}), prepared=PREPARED
        )
        for number in range(count)
    ]


def numbers():
    return [number for number, _ in Session.trained]
