"""What horovodrun tells its processes: known, put into the command line, and not contradicted."""

import os
import subprocess
import sys

import pytest

from runner.errors import ConfigError
from runner.executors import choice, launched
from runner.executors.launched import Launch, told
from runner.recording import how_to_go_on
from runner.resources import Machine
from tests.composed import CONF
from tests.fakes import make_experiment

OF_GLOO = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "4",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "1",
}
TWO = Launch(0, 2)
OF_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.fixture
def launch(monkeypatch):
    """This process as rank 1 of 4."""
    for key, value in OF_GLOO.items():
        monkeypatch.setenv(key, value)


def refusal(*arguments, verb="train", launch=TWO):
    with pytest.raises(ConfigError) as refused:
        told(launch, verb, arguments)
    return str(refused.value)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (OF_GLOO, Launch(1, 4, hosts=2)),
        ({key: value for key, value in OF_GLOO.items() if not key.startswith("HOROVOD_GLOO")}, None),
        ({**OF_GLOO, **OF_MPI}, Launch(1, 4, hosts=2)),
        (OF_MPI, Launch(1, 4, unknown="mpirun")),
        ({**OF_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, None),
        (
            {**OF_GLOO, "HOROVOD_ELASTIC": "1"},
            Launch(1, 4, 2, "horovodrun with --min-np or a script that finds hosts"),
        ),
    ],
    ids=["alone", "gloo", "half", "both", "mpirun", "mpirun of one", "elastic"],
)
def test_a_launch_is_known_by_its_environment(environment, found):
    assert launched.launched(environment) == found


def test_what_was_launched_is_not_configured_again():
    said = ["executor=horovodrun", "scaling.num_workers=2"]
    assert told(Launch(0, 2), "train", ["model=mlp"]) == ["model=mlp", *said]
    assert told(Launch(0, 2), "train", said) == [*said, *said]
    resumed = told(Launch(0, 2), "resume", ["run_id=1"])
    assert resumed == ["run_id=1", "executor.name=horovodrun", "scaling.num_workers=2"]


@pytest.mark.parametrize(
    ("arguments", "verb", "line"),
    [
        (
            ["scaling.num_workers=4"],
            "train",
            "scaling.num_workers=4: horovodrun has started 2; type horovodrun -np 4 …",
        ),
        (
            ["executor=local"],
            "train",
            "executor=local: horovodrun has started this; type python -m runner … executor=local",
        ),
        (
            ["executor.name=local"],
            "resume",
            "executor.name=local: horovodrun has started this; type python -m runner … executor.name=local",
        ),
        (
            ["-m", "seed=1,2"],
            "train",
            "-m: horovodrun trains one job a launch; type python -m runner --multirun …, without horovodrun",
        ),
        ([], "sync", "sync: horovodrun is for train and resume; type python -m runner sync …"),
    ],
)
def test_what_contradicts_the_launch_is_refused(arguments, verb, line):
    assert refusal(*arguments, verb=verb) == line


def test_launches_that_cannot_be_trained_with_are_refused():
    assert refusal(launch=Launch(0, 4, unknown="mpirun")) == (
        "executor=mpirun: this Horovod trains with a fixed number of ranks by Gloo; type horovodrun -np 4 python -m runner …"
    )


def test_a_process_of_mpirun_other_than_the_first_says_and_does_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "runner"],
        cwd=tmp_path,
        env={**os.environ, **OF_MPI, "PYTHONPATH": str(CONF.parent)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr, list(tmp_path.iterdir())) == (0, b"", b"", [])


def test_the_executor_without_its_launcher_is_refused():
    experiment = make_experiment({"executor.name": choice.ExecutorName.horovodrun, "scaling.num_workers": 3})
    with pytest.raises(ConfigError) as refused:
        choice.check_launch(experiment, resumes=False)
    started = "executor=horovodrun: horovodrun has not started this; type horovodrun -np 3 python -m runner"
    assert str(refused.value) == f"{started} …"
    with pytest.raises(ConfigError) as refused:
        choice.check_launch(experiment, resumes=True)
    assert str(refused.value) == f"{started} resume …, or executor.name=horovod_trainer"
    experiment.dry_run = True
    choice.check_launch(experiment, resumes=False)


def test_within_a_launch_it_is_not(launch):
    choice.check_launch(make_experiment({"executor.name": choice.ExecutorName.horovodrun}), resumes=False)


def test_ray_data_is_refused_with_what_can_be_typed_then(launch):
    settings = {
        "executor.name": choice.ExecutorName.horovodrun,
        "dataset.ingest": choice.Ingest.ray_data,
    }
    with pytest.raises(ConfigError) as refused:
        choice.check(make_experiment(settings))
    assert str(refused.value) == (
        "dataset.ingest=ray_data: executor=horovodrun starts no Ray; type dataset.ingest=dataloader"
    )


def test_a_run_goes_on_by_the_same_launcher(launch, tmp_path):
    assert how_to_go_on("1", tmp_path) == "go on with: horovodrun -np 4 python -m runner resume run_id=1"


def test_hosts_are_taken_to_be_alike():
    one = Machine(cpus=2, gpus=1)
    assert one.times(1, lambda: 7) is one
    assert one.times(3, lambda: 7) == Machine(cpus=6, gpus=3, memory=21, hosts=3)
    assert one.times(3, lambda: 7).name == "3 hosts like this one"
