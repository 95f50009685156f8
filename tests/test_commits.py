"""A training that stops at a commit and goes on from it, in memory: what a change of elastic workers is, on one rank."""

import numpy as np
import pytest
import torch

from runner import worker
from runner.communicator import SingleProcess
from runner.ingest.rows import Arrays
from runner.plan import DataFacts, make_plan
from runner.resources import ResourcePlan
from runner.saving import snapshot
from tests.fakes import make_experiment, without_times

ROWS, VAL_ROWS = 24, 6


@pytest.fixture(autouse=True)
def torch_settings():
    """Put back what `settle` changes in the process."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


class Commits:
    """A commit every other step; it stops the training at those of `stops`."""

    def __init__(self, *stops):
        self.found, self.stops, self.steps = None, stops, []

    def is_due(self, state):
        return state.step % 2 == 0

    def keep(self, training, communicator):
        taken = snapshot(training, communicator, {}, {}, on_all=True)
        self.found = taken.name, {**taken.state, "weights": dict(taken.weights)}
        self.steps.append(training.state.step)
        return training.state.step in self.stops


def job_of(folder):
    settings = {"scaling.num_workers": 1, "trainer.batch_size": 8, "trainer.epochs": 4}
    experiment = make_experiment({**settings, "checkpoint.enabled": False})
    data = DataFacts(ROWS, VAL_ROWS, (3,), 1)
    plan = make_plan(experiment, data, ResourcePlan(1, 1.0, 0.0))
    return worker.Job(experiment, plan, data, folder, None, None, folder, (), {})


def train(folder, commits):
    """(what train returned, its reports); from what `commits` has found."""
    draws, reports = np.random.default_rng(0), []
    rows, val = (draws.standard_normal((number, 3)).astype(np.float32) for number in (ROWS, VAL_ROWS))
    memory = worker.Memory({"train": Arrays(rows, rows[:, :1] * 2), "val": Arrays(val, val[:, :1] * 2)})
    is_restart = commits.found is not None
    ended = worker.train(
        job_of(folder), memory, {}, SingleProcess(), reports.append, is_restart, commits=commits
    )
    return ended, reports


def test_it_goes_on_from_a_commit_as_if_it_had_not_stopped(tmp_path):
    whole = Commits()
    ended, reports = train(tmp_path, whole)
    assert ended is None
    assert whole.steps == [2, 3, 4, 6, 8, 9, 10, 12]  # 3 steps an epoch, each of which ends with one too

    parts = Commits(4, 9)
    stopped, _ = train(tmp_path, parts)
    assert stopped == {}  # in the middle of an epoch: nothing was measured
    stopped, (goes_on, *_) = train(tmp_path, parts)
    assert goes_on["resumed"] == "step-00000004"
    assert [metrics["epoch"] for metrics in goes_on["history"]] == [1]
    assert stopped["epoch"] == 3
    ended, again = train(tmp_path, parts)
    assert ended is None
    assert parts.steps == whole.steps
    assert again[-2]["weights_sha256"] == reports[-2]["weights_sha256"]
    history = [*again[0]["history"], *again[1]["history"]]
    assert [without_times(each) for each in history] == [
        without_times(each) for each in reports[0]["history"]
    ]


def test_the_last_step_is_the_end_whatever_the_workers_do(tmp_path):
    ended, reports = train(tmp_path, Commits(12))
    assert ended is None
    assert reports[-2]["step"] == 12
