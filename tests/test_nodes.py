"""What every node of a cluster must have and reach, with nodes that answer as they are told."""

from __future__ import annotations

import pytest

from runner.errors import PreflightError
from runner.executors import nodes, ray_cluster


@pytest.fixture
def answers(monkeypatch):
    """answers(…): what each node says, by its name, whatever it is asked; those asked are kept."""
    asked = []

    def answer(**found):
        def on_nodes(function, *arguments):
            asked.append((function, arguments))
            return {name: say() if callable(say) else say for name, say in found.items()}

        monkeypatch.setattr(nodes, "on_nodes", on_nodes)
        return asked

    return answer


def test_all_nodes_have_the_same(answers):
    here = nodes._versions()
    answers(a=here, b=here)
    assert nodes.check_versions() == f"{here} on 2 nodes"
    answers(a=here)
    assert nodes.check_versions() == f"{here} on 1 node"


def test_another_version_is_refused_with_its_node(answers):
    answers(a=nodes._versions(), b="torch 2.0, no horovod")
    with pytest.raises(
        PreflightError, match=r"^node b has torch 2\.0, no horovod, this machine torch .*: install the same"
    ):
        nodes.check_versions()


def test_a_server_that_all_nodes_reach(answers):
    asked = answers(a=None, b=None)
    assert nodes.check_store("http://10.0.0.1:5000") == "http://10.0.0.1:5000 reached from there"
    assert [arguments for _, arguments in asked] == [("10.0.0.1", 5000)]


def test_a_server_that_a_node_does_not_reach(answers):
    answers(a=None, b="No route to host")
    with pytest.raises(PreflightError) as refused:
        nodes.check_store("http://10.0.0.1:5000")
    assert str(refused.value) == (
        "tracking.uri=http://10.0.0.1:5000: node b does not reach it (No route to host); open that port to it, "
        "or type the tracking.uri=… of a store that all nodes reach"
    )


def test_a_file_is_seen_where_it_is_shared(answers, tmp_path):
    seen = []

    def sees():
        (probe,) = tmp_path.iterdir()
        seen.append(nodes._sees(str(probe)))
        return seen[-1]

    asked = answers(a=sees)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert nodes.check_store(uri) == f"{uri} reached from there"
    assert seen == [None]
    assert asked[0][0] is nodes._sees
    assert not list(tmp_path.iterdir())


def test_a_file_of_this_machine_alone_is_refused(answers, tmp_path):
    answers(a=None, b=lambda: nodes._sees("/nowhere/probe"))
    with pytest.raises(PreflightError) as refused:
        nodes.check_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert str(refused.value) == (
        f"tracking.uri=sqlite:///{tmp_path}/mlflow.db: node b does not reach it (a file of another machine); start "
        "`mlflow server` where all nodes reach it, and type tracking.uri=http://<host>:5000"
    )
    assert not list(tmp_path.iterdir())


def test_a_store_that_mlflow_alone_knows(answers):
    assert answers() == []
    assert nodes.check_store("databricks") == "databricks not tried: MLflow alone knows where it is"


@pytest.mark.parametrize(
    ("limit", "cpus", "gpus"), [(None, 4, 1), ({"CPU": 64}, 64, 1), ({"CPU": 2, "GPU": 8}, 4, 8)]
)
def test_a_cluster_that_grows_has_what_it_may_grow_to(monkeypatch, limit, cpus, gpus):
    import ray
    from ray._private.state import state

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 1.0, "memory": 1e9})
    monkeypatch.setattr(state, "get_max_resources_from_cluster_config", lambda: limit)
    machine = ray_cluster.cluster_machine(horovod_gpu=False)
    assert (machine.cpus, machine.gpus, machine.is_cluster) == (cpus, gpus, True)
