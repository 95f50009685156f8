"""A group of another size on Ray Train V2: the job that its ranks get."""

from __future__ import annotations

import pytest

from runner import going_on
from runner.errors import ConfigError
from runner.executor_schema import ExecutorName
from runner.executors import choice
from runner.executors.v2_driver import resized
from runner.job import Job
from runner.plan import DataFacts, make_plan
from runner.resources import ResourcePlan
from tests.fakes import make_experiment

DATA = DataFacts(100, 20, (1,), 1)


def job_of(run_dir, workers, **settings):
    sizes = {"scaling.num_workers": workers, "trainer.batch_size": 5, "trainer.epochs": 5, **settings}
    experiment = make_experiment({**sizes, "executor.name": ExecutorName.train_v2})
    plan = make_plan(experiment, DATA, ResourcePlan(workers, 0.5, 0.0))
    return Job(experiment, plan, DATA, run_dir, None, None, run_dir, (), {})


def test_fewer_workers_go_on_from_the_checkpoint_by_the_rule(tmp_path, monkeypatch):
    manifest = {
        "epoch": 2,
        "step": 14,
        "rows": 0,
        "stale": 0,
        "num_workers": 3,
        "global_batch_size": 15,
        "data": DATA.identity(),
    }
    monkeypatch.setattr(going_on, "newest", {tmp_path: manifest}.get)
    job, change = resized(job_of(tmp_path, 3), 2)
    assert job.experiment.scaling.num_workers == job.plan.num_workers == 2
    assert (job.plan.resources.cpus_per_worker, job.plan.global_batch_size) == (0.5, 10)
    assert job.plan.total_steps == 14 + 3 * 10  # two epochs of 7 steps are behind it, three of 10 before it
    assert change.startswith(
        "from step 14 on 2 workers instead of 3: global batch 10 instead of 15, 44 steps in all; lr 0.1 "
    )
    assert resized(job, 3)[0].plan.global_batch_size == 15


def test_before_the_first_checkpoint_it_begins_with_as_many_as_there_are(tmp_path):
    job, change = resized(job_of(tmp_path, 3), 1)
    assert (job.plan.num_workers, job.plan.total_steps, change) == (1, 100, None)


def test_no_more_at_least_than_at_most(tmp_path):
    for fewest in (None, 1, 3):
        choice.check(job_of(tmp_path, 3, **{"executor.min_workers": fewest}).experiment)
    with pytest.raises(ConfigError) as refused:
        choice.check(job_of(tmp_path, 3, **{"executor.min_workers": 4}).experiment)
    assert str(refused.value) == (
        "executor.min_workers=4: more than scaling.num_workers=3, the most workers; type executor.min_workers=3"
    )
