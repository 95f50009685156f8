"""What a machine can run: exact refusals, and remedies that are accepted when typed."""

import os
import re

import pytest

from runner import preflight
from runner.errors import PreflightError
from runner.resources import Machine, ResourcePlan, plan_resources
from tests.fakes import LAPTOP, make_experiment

GPU = "scaling.resources_per_worker.GPU"
CPU = "scaling.resources_per_worker.CPU"


def check(resources, machine):
    preflight.check_resources(resources, machine)
    preflight.check_horovod(resources, machine)


def refusal(settings, machine):
    with pytest.raises(PreflightError) as refused:
        check(plan_resources(make_experiment(settings), machine), machine)
    return str(refused.value)


def remedies(message):
    """Each alternative after `type`, as settings."""
    values = {"false": False, "true": True}
    alternatives = re.split(" or |, or ", message.partition("; type ")[2])
    found = [dict(part.split("=") for part in line.split() if "=" in part) for line in alternatives]
    return [
        {
            key: values.get(text, float(text) if "per_worker" in key else text)
            if text in values or "per_worker" in key
            else int(text)
            for key, text in settings.items()
        }
        for settings in found
        if settings
    ]


REFUSED = [
    (
        {"scaling.num_workers": 40},
        LAPTOP,
        (
            "scaling.num_workers=40: 40 workers × 0.1 CPU need 4 CPUs, this machine has 2; "
            "type scaling.num_workers=20"
        ),
    ),
    (
        {"scaling.num_workers": 4, CPU: 1.0},
        LAPTOP,
        (
            "scaling.num_workers=4: 4 workers × 1 CPU need 4 CPUs, this machine has 2; "
            "type scaling.num_workers=2 or scaling.resources_per_worker.CPU=0.5"
        ),
    ),
    (
        {"scaling.num_workers": 1, CPU: 4.0},
        LAPTOP,
        (
            "scaling.num_workers=1: 1 worker × 4 CPU need 4 CPUs, this machine has 2; "
            "type scaling.resources_per_worker.CPU=2"
        ),
    ),
    (
        {"scaling.num_workers": 40, CPU: 4.0},
        LAPTOP,
        (
            "scaling.num_workers=40: 40 workers × 4 CPU need 160 CPUs, this machine has 2; "
            "type scaling.num_workers=2 scaling.resources_per_worker.CPU=1"
        ),
    ),
    (
        {"scaling.num_workers": 4},
        Machine(cpus=2, is_cluster=True),
        (
            "scaling.num_workers=4: 4 workers × 1 CPU need 4 CPUs, the cluster has 2; "
            "type scaling.num_workers=2 or scaling.resources_per_worker.CPU=0.5"
        ),
    ),
    (
        {"scaling.use_gpu": True},
        LAPTOP,
        "scaling.num_workers=2: 2 workers × 1 GPU need 2 GPUs, this machine has 0; type scaling.use_gpu=false",
    ),
    (
        {"scaling.use_gpu": True, "scaling.num_workers": 3},
        Machine(cpus=8, gpus=2, horovod_gpu=True),
        (
            "scaling.num_workers=3: 3 workers × 1 GPU need 3 GPUs, this machine has 2; "
            "type scaling.num_workers=2 or scaling.use_gpu=false"
        ),
    ),
    (
        {"scaling.use_gpu": True, GPU: 1.0},  # scaling=gpu
        LAPTOP,
        "scaling.num_workers=2: 2 workers × 1 GPU need 2 GPUs, this machine has 0; type scaling.use_gpu=false",
    ),
    (
        {"scaling.use_gpu": True},
        Machine(cpus=8, gpus=2),
        (
            "scaling.use_gpu=true: this Horovod was built without NCCL; type scaling.use_gpu=false, "
            "or rebuild it where nvcc and a CUDA build of torch are installed (see CONTRIBUTING.md)"
        ),
    ),
]


@pytest.mark.parametrize(("settings", "machine", "message"), REFUSED)
def test_refusal_says_what_is_needed_what_there_is_and_what_to_type(settings, machine, message):
    assert refusal(settings, machine) == message


@pytest.mark.parametrize(("settings", "machine"), [case[:2] for case in REFUSED])
def test_every_remedy_that_a_refusal_names_is_accepted(settings, machine):
    proposed = remedies(refusal(settings, machine))
    assert proposed
    for remedy in proposed:
        check(plan_resources(make_experiment({**settings, **remedy}), machine), machine)


@pytest.mark.parametrize("workers", range(1, 21))
def test_up_to_ten_workers_a_core_share_a_small_machine(workers):
    preflight.check_resources(
        plan_resources(make_experiment({"scaling.num_workers": workers}), LAPTOP), LAPTOP
    )


@pytest.mark.parametrize(
    ("settings", "has", "message"),
    [
        (
            {"scaling.custom_resources": {"big_disk": 0.5}},
            {},
            (
                "scaling.custom_resources.big_disk=0.5: 2 workers × 0.5 big_disk need 1, the cluster has 0; type "
                "scaling.custom_resources.big_disk=0, or start a cluster's nodes with ray start --resources='{\"big_disk\": …}'"
            ),
        ),
        (
            {"scaling.accelerator_type": "A100"},
            {"accelerator_type:V100": 1.0, "accelerator_type:T4": 2.0},
            "scaling.accelerator_type=A100: the cluster has T4, V100; type scaling.accelerator_type=T4",
        ),
        (
            {"scaling.accelerator_type": "A100"},
            {},
            "scaling.accelerator_type=A100: the cluster has no GPU that Ray knows; type scaling.accelerator_type=null",
        ),
    ],
)
def test_other_resources_of_a_cluster_are_there_or_refused(settings, has, message):
    cluster = Machine(cpus=8, is_cluster=True, custom=has)
    plan = plan_resources(make_experiment(settings), cluster)
    with pytest.raises(PreflightError) as raised:
        preflight.check_resources(plan, cluster)
    assert str(raised.value) == message
    enough = Machine(cpus=8, is_cluster=True, custom=dict(plan.total()))
    assert preflight.check_resources(plan, enough).startswith("2 workers × 1 CPU + ")


def test_rounding_of_shares_refuses_nothing_that_fits():
    assert 100 * 0.07 > 7
    preflight.check_resources(ResourcePlan(100, 0.07, 0.0), Machine(cpus=7))


def test_reserved_cpus_are_not_for_workers():
    preflight.check_resources(ResourcePlan(2, 0.5, 0.0, reserved_cpus=1.0), LAPTOP)
    with pytest.raises(PreflightError) as raised:
        preflight.check_resources(ResourcePlan(2, 1.0, 0.0, reserved_cpus=1.0), LAPTOP)
    assert str(raised.value) == (
        "scaling.num_workers=2: 2 workers × 1 CPU need 2 CPUs, this machine has 1 beside the 1 kept free for "
        "Ray Data; type scaling.num_workers=1 or scaling.resources_per_worker.CPU=0.5 or dataset.ingest=tensors"
    )


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("max 100000\n", 8.0),
        ("200000 100000\n", 2.0),
        ("150000 100000\n", 1.0),
        ("50000 100000\n", 1.0),
        ("1600000 100000\n", 8.0),
        (None, 8.0),
    ],
)
def test_cpus_are_those_of_the_affinity_within_the_container_quota(tmp_path, monkeypatch, quota, cpus):
    monkeypatch.setattr(preflight, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert preflight.this_machine(want_gpu=False) == Machine(cpus=cpus)
