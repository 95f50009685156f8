"""One process without communication, the settings that Horovod reads when it starts, and two real ranks of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner.communicator import LostPeerError, SingleProcess, device, environment, lost_peer
from runner.errors import TrainingError
from runner.schema import Horovod
from tests.fakes import on_ranks


def test_a_single_process_talks_to_itself():
    alone, tensor = SingleProcess(), torch.tensor([1.0, 2.0])
    assert (alone.rank, alone.size, alone.local_rank) == (0, 1, 0)
    assert torch.equal(alone.allreduce_mean(tensor), tensor)
    assert torch.equal(alone.allgather(tensor), tensor[None])
    assert alone.allgather_bytes(b"abc") == [b"abc"]
    assert alone.broadcast("value") == "value"
    assert (alone.waiting, alone.waited) == (None, 0.0)
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
            communicator.allgather_bytes(b"x" * communicator.rank),
            communicator.broadcast(communicator.rank),
        )

    assert on_ranks(3, rank) == [([1.0], [[0.0], [1.0], [2.0]], [b"", b"x", b"xx"], 0)] * 3


# Two ranks of Horovod. Rank 1 is always late, and is killed in the end.

RANK = """
import json, os, signal, threading, time
from pathlib import Path
import torch
from runner.communicator import HorovodCommunicator, lost_peer
from runner.schema import Horovod

torch.set_num_threads(1)
talk = HorovodCommunicator(Horovod(), deterministic=False)
models = [torch.nn.Linear(3, 1) for _ in range(2)]
optimizers = [talk.distribute(torch.optim.SGD(model.parameters(), 0.1), model, 1) for model in models]
found, seen = {}, []

def look():
    while True:
        seen.append(talk.waiting)
        time.sleep(0.001)

threading.Thread(target=look, daemon=True).start()

def backward(model):
    model(torch.ones(2, 3)).sum().backward()

def step():
    backward(models[0])
    with talk.averaged(optimizers[0]):
        optimizers[0].step()

for name, call in {
    "allreduce": lambda: talk.allreduce_mean(torch.ones(2)),
    "allgather": lambda: talk.allgather(torch.ones(2)),
    "allgather_bytes": lambda: talk.allgather_bytes(b"abc"),
    "broadcast": lambda: talk.broadcast([1, 2]),
    "broadcast_model": lambda: talk.broadcast_model(models[0]),
    "gradients": step,
}.items():
    talk.allgather(torch.zeros(1))
    seen.clear()
    before, began = talk.waited, time.monotonic()
    if talk.rank == 1:
        time.sleep(0.5)
    call()
    took = time.monotonic() - began
    found[name] = [talk.waited - before, took, talk.waiting, sorted({name for name in seen if name})]

def failure(call):
    try:
        call()
    except Exception as error:
        told = lost_peer(error)
        return [type(error).__name__, type(error.__cause__).__name__, type(told).__name__, str(told)]

for length in (3, 5, 3, 0):  # rank 1's is longer by one each time but the last
    texts = talk.allgather_bytes(b"ab" * length + b"c" * (talk.rank if length else 0))
    found.setdefault("bytes", []).append([text.decode() for text in texts])

found["mismatched"] = failure(lambda: talk.allreduce_mean(torch.ones(2 + talk.rank)))
optimizers[0].zero_grad()
if talk.rank == 1:
    time.sleep(0.3)
    Path("killed").write_text(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
found["lost"] = failure(lambda: talk.allgather(torch.ones(2)))
found["seconds"] = time.time() - float(Path("killed").read_text())
found["waiting"] = talk.waiting
time.sleep(1)  # Horovod's background thread hangs if it is asked for more while it ends
found["hook"] = failure(lambda: backward(models[1]))
Path("found.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What rank 0 has found."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer

    folder = tmp_path_factory.mktemp("ranks")
    server = RendezvousServer()
    port = server.start()
    slots = get_host_assignments(parse_hosts("localhost:2"), 2)
    server.init(slots)
    common = {**create_run_env_vars("127.0.0.1", {"lo"}, port), "PYTHONPATH": Path(__file__).parents[1]}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            cwd=folder,
            env={
                **os.environ,
                **{key: str(value) for key, value in common.items()},
                **create_slot_env_vars(slot),
            },
            stderr=subprocess.DEVNULL,  # Horovod's background thread tells of the lost connection too
        )
        for slot in slots
    ]
    try:
        assert [process.wait(100) for process in processes] == [0, -signal.SIGKILL]
        return json.loads((folder / "found.json").read_text())
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.stop()
        server._httpd.server_close()


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        ("allreduce", "allreduce"),
        ("allgather", "allgather"),
        ("allgather_bytes", "allgather"),
        ("broadcast", "broadcast"),
        ("broadcast_model", "broadcast of the model"),
        ("gradients", "gradients"),
    ],
)
def test_waiting_for_another_rank_is_measured_and_named(found, collective, name):
    waited, took, waiting_after, seen = found[collective]
    assert 0.4 < waited <= took
    assert waiting_after is None
    assert name in seen


def test_bytes_of_another_length_on_each_rank_are_gathered(found):
    assert found["bytes"] == [
        ["ababab", "abababc"],
        ["ababababab", "abababababc"],
        ["ababab", "abababc"],
        ["", ""],
    ]


def test_ranks_that_do_not_agree_have_lost_no_peer(found):
    assert found["mismatched"] == ["TrainingError", "HorovodInternalError", "NoneType", "None"]


def test_a_killed_peer_is_an_error_within_seconds(found):
    kind, cause, _, message = found["lost"]
    assert (kind, cause) == ("LostPeerError", "HorovodInternalError")
    assert message.startswith("a collective failed: another rank ended or stopped answering (")
    assert found["seconds"] < 5
    assert found["waiting"] is None


def test_what_a_gradient_s_hook_raises_for_a_lost_peer_is_known(found):
    kind, _, told, message = found["hook"]
    assert (kind, told) == ("HorovodInternalError", "LostPeerError")
    assert (
        message == "a collective failed: another rank ended or stopped answering (Horovod has been shut down)"
    )


def test_other_errors_are_not_of_a_lost_peer():
    assert lost_peer(RuntimeError("Horovod has been shut down")) is None
    lost = LostPeerError("gone")
    assert lost_peer(lost) is lost
    assert isinstance(lost, TrainingError)
