"""executor.num_hosts × executor.num_workers_per_host: what they make of scaling.num_workers, and what is refused."""

from pathlib import Path

import pytest

from runner.errors import ConfigError
from runner.executor_schema import ExecutorName
from runner.executors import choice
from runner.request import Request
from runner.schema import Placement
from tests.composed import compose
from tests.fakes import make_experiment

RAY = "executor=ray_executor"
HOSTS = {"executor.name": ExecutorName.ray_executor, "executor.num_hosts": 2, "scaling.address": "head:6379"}


def request(*overrides):
    return Request.of(compose(overrides), overrides, Path("run"), ())


@pytest.mark.parametrize(
    ("overrides", "workers"),
    [
        ([RAY], 2),
        ([RAY, "executor.num_hosts=3"], 3),
        ([RAY, "executor.num_hosts=3", "executor.num_workers_per_host=4"], 12),
        ([RAY, "executor.num_hosts=3", "executor.num_workers_per_host=4", "scaling=gpu"], 12),
        ([RAY, "executor.num_hosts=3", "scaling.num_workers=3"], 3),
    ],
)
def test_hosts_give_the_number_of_workers(overrides, workers):
    found = request(*overrides)
    assert found.experiment.scaling.num_workers == found.values["scaling"]["num_workers"] == workers
    assert f"num_workers: {workers}\n" in found.yaml  # so a run that goes on has as many
    assert found.fingerprint == request(f"scaling.num_workers={workers}", *overrides[3:]).fingerprint


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["executor.num_hosts=2", "executor.num_workers_per_host=4", "scaling.num_workers=3"],
            (
                "scaling.num_workers=3: executor.num_hosts=2 × executor.num_workers_per_host=4 are 8; "
                "type scaling.num_workers=8, or leave it out"
            ),
        ),
        (["executor.num_hosts=0"], "executor.num_hosts=0: must be 1 or more; type executor.num_hosts=1"),
        (
            ["executor.num_hosts=1", "executor.num_workers_per_host=-1"],
            "executor.num_workers_per_host=-1: must be 1 or more; type executor.num_workers_per_host=1",
        ),
        (
            ["horovod.ssh_str=whatever"],
            "horovod.ssh_str=…: Horovod writes it into a file, which has no name; type horovod.ssh_identity_file=…",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(overrides, said):
    with pytest.raises(ConfigError) as refused:
        request(RAY, *overrides)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, None),
        ({"executor.num_hosts": 1, "scaling.address": "local"}, None),
        ({"executor.num_hosts": None, "scaling.placement_strategy": Placement.SPREAD}, None),
        (
            {"scaling.address": "local"},
            (
                "executor.num_hosts=2: this machine is one host, and no cluster is joined; "
                "type executor.num_hosts=1, or scaling.address=<host>:6379"
            ),
        ),
        (
            {"executor.name": ExecutorName.horovod_trainer},
            (
                "executor.num_hosts=2: executor=horovod_trainer places workers by scaling.placement_strategy; "
                "type executor=ray_executor"
            ),
        ),
        (
            {"executor.num_hosts": None, "executor.num_workers_per_host": 4},
            (
                "executor.num_workers_per_host=4: the number of hosts is not given; "
                "type executor.num_hosts=1, or scaling.num_workers=4 instead"
            ),
        ),
        (
            {"scaling.placement_strategy": Placement.SPREAD},
            (
                "scaling.placement_strategy=SPREAD: executor.num_hosts spreads the workers already; "
                "type scaling.placement_strategy=PACK"
            ),
        ),
        (
            {"scaling.resources_per_worker.GPU": 2.0},
            (
                "scaling.resources_per_worker.GPU=2: with executor.num_hosts Horovod gives each worker one GPU; "
                "type scaling.resources_per_worker.GPU=1"
            ),
        ),
        (
            {"scaling.address": "ray://head:10001"},
            (
                "scaling.address=ray://head:10001: executor=ray_executor must be within the cluster, not a Ray client of it; "
                "type scaling.address=<host of the head>:6379"
            ),
        ),
    ],
)
def test_what_the_executor_cannot_do_is_refused(settings, said, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    experiment = make_experiment({**HOSTS, **settings})
    if said is None:
        choice.check(experiment)
        return
    with pytest.raises(ConfigError) as refused:
        choice.check(experiment)
    assert str(refused.value) == said
