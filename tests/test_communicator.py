"""One process without communication, and the settings that Horovod reads when it starts."""

import torch

from runner.communicator import SingleProcess, device, environment
from runner.schema import Horovod
from tests.fakes import on_ranks


def test_a_single_process_talks_to_itself():
    alone, tensor = SingleProcess(), torch.tensor([1.0, 2.0])
    assert (alone.rank, alone.size, alone.local_rank) == (0, 1, 0)
    assert torch.equal(alone.allreduce_mean(tensor), tensor)
    assert torch.equal(alone.allgather(tensor), tensor[None])
    assert alone.broadcast("value") == "value"
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    assert alone.distribute(optimizer, torch.nn.Linear(1, 1), 2) is optimizer


def test_horovod_s_environment_from_its_settings():
    settings = Horovod(fusion_threshold_mb=0.5, cycle_time_ms=2.5, cache_capacity=7, gloo_timeout_s=11)
    settings.stall_warning_s, settings.stall_shutdown_s = 12, 13
    assert environment(settings, deterministic=False) == {
        "HOROVOD_FUSION_THRESHOLD": "524288",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "11",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "12",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "13",
        "HOROVOD_LOG_LEVEL": "warning",
    }


def test_a_deterministic_run_fuses_nothing():
    assert environment(Horovod(), deterministic=False)["HOROVOD_FUSION_THRESHOLD"] == str(128 * 2**20)
    assert environment(Horovod(), deterministic=True)["HOROVOD_FUSION_THRESHOLD"] == "0"


def test_without_gpus_the_device_is_the_cpu():
    assert device(SingleProcess(), use_gpu=False) == torch.device("cpu")


def test_the_tests_own_ranks_average_gather_and_broadcast():
    def rank(communicator):
        mine = torch.tensor([float(communicator.rank)])
        return (
            communicator.allreduce_mean(mine).tolist(),
            communicator.allgather(mine).tolist(),
            communicator.broadcast(communicator.rank),
        )

    assert on_ranks(3, rank) == [([1.0], [[0.0], [1.0], [2.0]], 0)] * 3
