"""Where the workers of an elastic training may be, and how a rank ends its connections."""

import socket

import pytest

from runner.errors import ConfigError, LaunchError
from runner.executor_schema import ExecutorName
from runner.executors import choice, hosts
from runner.executors.connections import Connections
from runner.executors.hosts import Hosts
from runner.resources import ResourcePlan
from runner.schema import Ingest
from tests.fakes import make_experiment

HERE = {
    "NodeManagerHostname": "a",
    "NodeManagerAddress": "10.0.0.1",
    "NodeID": "A",
    "Alive": True,
    "Resources": {"CPU": 3.0},
}
THERE = {
    "NodeManagerHostname": "b",
    "NodeManagerAddress": "10.0.0.2",
    "NodeID": "B",
    "Alive": True,
    "Resources": {"CPU": 1.0},
}


@pytest.fixture
def nodes(monkeypatch):
    found = [HERE, THERE]
    monkeypatch.setattr("ray.nodes", lambda: found)
    return found


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(hosts.time, "monotonic", lambda: now[0])
    return now


def of(most=8, script=None, cooldown=(1, 60), is_local=False):
    return Hosts(ResourcePlan(2, 1.0, 0.0), most, is_local, script, cooldown)


def names(found):
    return sorted(found.find_available_hosts_and_slots())


def test_every_cpu_of_every_node_is_a_place(nodes):
    assert names(of()) == ["10.0.0.1-0", "10.0.0.1-1", "10.0.0.1-2", "10.0.0.2-0"]
    assert names(of(most=2)) == ["10.0.0.1-0", "10.0.0.1-1"]
    nodes[0] = {**HERE, "Alive": False}
    assert names(of()) == ["10.0.0.2-0"]


def test_a_lost_workers_place_is_there_again_under_another_name(nodes, clock):
    places = of(most=2)
    assert names(places) == ["10.0.0.1-0", "10.0.0.1-1"]
    places.lost("10.0.0.1-1")
    assert (names(places), places.left) == (["10.0.0.1-0"], 2)
    clock[0] += 1
    assert names(places) == ["10.0.0.1-0", "10.0.0.1-1.1"]
    places.lost("10.0.0.1-1.1")
    clock[0] += 1
    assert names(places) == ["10.0.0.1-0"]  # twice as long
    clock[0] += 1
    assert names(places) == ["10.0.0.1-0", "10.0.0.1-1.2"]
    assert places.nodes["10.0.0.1-1.2"] == "A"


def test_without_a_cooldown_and_after_an_error_it_is_not(nodes, clock):
    never, banned = of(most=2, cooldown=None), of(most=2)
    assert names(never) == names(banned) == ["10.0.0.1-0", "10.0.0.1-1"]
    never.lost("10.0.0.1-0")
    banned.ban("10.0.0.1-0")
    banned.lost("10.0.0.1-0")
    clock[0] += 1e6
    assert names(never) == names(banned) == ["10.0.0.1-1"]
    assert never.left == banned.left == 1


def test_a_script_says_which_hosts_there_are(nodes):
    script = "printf 'b\\n\\na:2\\nnowhere:4\\n'"
    assert names(of(script=script)) == ["a-0", "a-1", "b-0"]
    local = of(script=script, is_local=True)
    assert names(local) == ["a-0", "a-1", "b-0", "nowhere-0", "nowhere-1", "nowhere-2", "nowhere-3"]
    assert local.nodes["nowhere-3"] == "A"


@pytest.mark.parametrize("script", ["exit 3", "echo a:many"])
def test_a_script_that_fails_is_named(nodes, script):
    with pytest.raises(LaunchError, match=f"executor.discovery={script}: "):
        of(script=script).find_available_hosts_and_slots()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"executor.min_workers": 3},
            "executor.min_workers=3: more than 2, the most workers; type executor.min_workers=2",
        ),
        (
            {"executor.cooldown_s": [5, 2]},
            "executor.cooldown_s=[5, 2]: must be two numbers of seconds from 1 to 3600",
        ),
        ({"executor.cooldown_s": [5]}, "executor.cooldown_s=[5]: must be two numbers"),
        ({"dataset.ingest": Ingest.ray_data}, "dataset.ingest=ray_data: deals an epoch's rows once"),
        ({"horovod.cycle_time_ms": 5.0}, "horovod.cycle_time_ms=5.0: Horovod 0.28.1 cannot connect again"),
        (
            {"lr_scaling.target": {"_target_": "runner.lr_scaling.adascale"}},
            "executor.keep=global_batch: AdaScale",
        ),
    ],
)
def test_what_elastic_cannot_do_is_refused(settings, said):
    experiment = make_experiment(
        {"executor.name": ExecutorName.elastic, "scaling.num_workers": 2, **settings}
    )
    with pytest.raises(ConfigError) as refused:
        choice.check(experiment)
    assert str(refused.value).startswith(said)


def test_connections_to_peers_are_ended_and_nothing_else():
    with socket.create_server(("127.0.0.1", 0)) as other_server:
        other = socket.create_connection(other_server.getsockname())
        connections = Connections()
        server = socket.create_server(("127.0.0.1", 0))
        mine = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        connections.after()
        connections.end()
        assert peer.recv(1) == mine.recv(1) == b""  # ended
        later = socket.create_connection(server.getsockname())  # what listens still does
        other.sendall(b"x")
        answer, _ = other_server.accept()
        assert answer.recv(1) == b"x"
        for each in (other, server, mine, peer, later, answer):
            each.close()
