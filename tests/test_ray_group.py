"""What Horovod's RayExecutor is told of a config, and how it is said that its workers do not start. Without Ray."""

import stat

import pytest
from horovod.ray import RayExecutor

from runner.executor_schema import ExecutorName
from runner.executors import ray_executor, ray_group
from runner.job import Job
from runner.plan import DataFacts, make_plan
from runner.resources import Machine, plan_resources
from runner.schema import Horovod, Placement
from tests.fakes import make_experiment

GPUS = Machine(cpus=64, gpus=8, horovod_gpu=True)


@pytest.fixture
def told(monkeypatch, tmp_path):
    """told(settings, machine) → what RayGroup is given of a job."""

    def give(settings, machine):
        experiment = make_experiment(settings)
        plan = make_plan(experiment, DataFacts(100, 10, (1,), 1), plan_resources(experiment, machine))
        job = Job(experiment, plan, None, tmp_path, None, None, tmp_path, (), {})
        given = []
        monkeypatch.setattr(ray_executor, "RayGroup", lambda *arguments: given.append(arguments))
        ray_executor.group_of(job)
        ((horovod, workers, connect, placement, besides, executable),) = given
        RayExecutor(ray_group._settings(horovod), **workers)  # it takes them
        return workers, connect, placement, besides, executable

    monkeypatch.setattr(ray_group, "is_one_machine", lambda: True)
    return give


@pytest.mark.parametrize(
    ("settings", "machine", "workers"),
    [
        (
            {"scaling.num_workers": 4},
            Machine(cpus=2),
            {"num_workers": 4, "cpus_per_worker": 0.5, "use_gpu": False, "gpus_per_worker": None},
        ),
        (
            {"scaling.num_workers": 4, "scaling.resources_per_worker.CPU": 3.0},
            GPUS,
            {"num_workers": 4, "cpus_per_worker": 3.0, "use_gpu": True, "gpus_per_worker": 1.0},
        ),
        (
            {
                "scaling.num_workers": 6,
                "executor.name": ExecutorName.ray_executor,
                "executor.num_hosts": 2,
                "executor.num_workers_per_host": 3,
            },
            GPUS,
            {
                "num_hosts": 2,
                "num_workers_per_host": 3,
                "cpus_per_worker": 1.0,
                "use_gpu": True,
                "gpus_per_worker": 1.0,
            },
        ),
    ],
    ids=["shares of CPUs", "GPUs", "hosts"],
)
def test_workers_get_what_the_plan_gives_them(told, settings, machine, workers):
    assert told(settings, machine)[0] == workers


def test_ranks_are_placed_and_connected_as_the_config_says(told, tmp_path):
    settings = {
        "scaling.placement_strategy": Placement.SPREAD,
        "horovod.timeline": True,
        "horovod.key": "a secret",
        "trainer.deterministic": True,
    }
    _, connect, placement, besides, executable = told(settings, GPUS)
    own, deterministic, timeline = connect.args
    assert besides == {}
    assert (placement, executable, deterministic) == (Placement.SPREAD, None, True)
    assert timeline.is_relative_to(tmp_path)
    assert own.key is None  # it is the driver's


def test_other_resources_are_placed_with_the_workers(told):
    settings = {
        "scaling.num_workers": 4,
        "scaling.custom_resources": {"bandwidth": 2.0},
        "scaling.accelerator_type": "A100",
    }
    assert told(settings, GPUS)[3] == {"bandwidth": 2.0, "accelerator_type:A100": 0.001}
    hosts = {"executor.name": ExecutorName.ray_executor, "executor.num_hosts": 2}
    assert told({**settings, **hosts}, GPUS)[3] == {"bandwidth": 4.0, "accelerator_type:A100": 0.002}


@pytest.mark.parametrize(("wanted", "strategy"), [("SPREAD", "SPREAD"), (None, "STRICT_SPREAD")])
def test_a_placement_group_has_the_strategy_and_resources_that_horovod_does_not_ask_for(wanted, strategy):
    group = object.__new__(ray_group.RayGroup)
    group._placed = []
    placed = group._place(
        lambda bundles, strategy: (bundles, strategy),
        wanted,
        {"disk": 0.5},
        [{"CPU": 1, "GPU": 0}] * 2,
        "STRICT_SPREAD",
    )
    assert placed == ([{"CPU": 1, "GPU": 0, "disk": 0.5}] * 2, strategy)
    assert group._placed == [placed]


@pytest.mark.parametrize(
    ("nics", "is_one", "given"), [(None, True, {"lo"}), (None, False, None), (["eth0"], False, {"eth0"})]
)
def test_settings_are_those_of_conf_horovod(tmp_path, monkeypatch, nics, is_one, given):
    monkeypatch.setattr(ray_group, "is_one_machine", lambda: is_one)
    file = tmp_path / "identity"
    horovod = Horovod(
        nics=nics,
        timeout_s=7,
        placement_group_timeout_s=8,
        verbose=2,
        key="letters",
        ssh_port=2222,
        ssh_identity_file=str(file),
        ssh_str="private",
    )
    found = ray_group._settings(horovod)
    assert (found.timeout_s, found.placement_group_timeout_s, found.verbose) == (7, 8, 2)
    assert (found.key, found.ssh_port, found.ssh_identity_file) == (b"letters", 2222, str(file))
    assert found.nics == given
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("private", 0o600)
    assert len(ray_group._settings(Horovod()).key) == 32  # bytes, drawn by Horovod


@pytest.mark.parametrize(
    ("error", "horovod", "said"),
    [
        (
            TimeoutError("Placement group creation timed out. Make sure your cluster …"),
            Horovod(placement_group_timeout_s=8),
            "Ray had no room for them within 8 s (horovod.placement_group_timeout_s)",
        ),
        (
            ValueError("No interface is found for address 127.0.0.1."),
            Horovod(nics=["eth0", "eth1"]),
            (
                "on one machine ranks meet at 127.0.0.1, which horovod.nics=[eth0,eth1] has not; "
                "type horovod.nics=null"
            ),
        ),
        (ValueError("first\nlast"), Horovod(), "last"),
        (ValueError(), Horovod(), "ValueError"),
    ],
)
def test_why_the_workers_do_not_start(error, horovod, said):
    assert ray_group._reason(error, horovod) == said
