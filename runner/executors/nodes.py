"""What is asked of every node of a Ray cluster, or done there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from runner.errors import PreflightError
from runner.reach import unreachable
from runner.tracking.store import endpoint

NODE_SECONDS = 30.0  # for a task that a node answers at once


def check_versions() -> str:
    """Every node must have the driver's torch and Horovod; raises PreflightError that names the node."""
    here, nodes = _versions(), on_nodes(_versions)
    for host, found in nodes.items():
        if found != here:
            raise PreflightError(
                f"node {host} has {found}, this machine {here}: install the same on every node"
            )
    return f"{here} on {len(nodes)} node{'' if len(nodes) == 1 else 's'}"


def check_store(uri: str) -> str:
    """Every node must reach the tracking store, for any may have rank 0; raises PreflightError that names the node."""
    where = endpoint(uri)
    if isinstance(where, Path):  # a file, which others see where the file system is shared
        where.parent.mkdir(parents=True, exist_ok=True)
        probe = where.with_name(f".seen-{uuid4().hex}")
        probe.touch()
        try:
            nodes = on_nodes(_sees, str(probe))
        finally:
            probe.unlink()
        instead = "start `mlflow server` where all nodes reach it, and type tracking.uri=http://<host>:5000"
    elif where is not None:
        nodes = on_nodes(unreachable, *where)
        instead = "open that port to it, or type the tracking.uri=… of a store that all nodes reach"
    else:
        return f"{uri} not tried: MLflow alone knows where it is"
    for host, reason in nodes.items():
        if reason is not None:
            raise PreflightError(f"tracking.uri={uri}: node {host} does not reach it ({reason}); {instead}")
    return f"{uri} reached from there"


def collect(source: Path, target: Path, but_node: str) -> None:
    """Copy the ranks' logs and records, which lie in `source` on the other nodes, into `target` here.

    `but_node` is the driver's own node. Logs that exist already (a shared file system) are left as they are.
    """
    for files in on_nodes(_read_records, str(source), but_node=but_node).values():
        for name, content in files.items():
            path = target / name
            if not path.exists() or path.suffix != ".log":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


def on_nodes(function: Callable[..., Any], *arguments: Any, but_node: str | None = None) -> dict[str, Any]:
    """What `function(*arguments)` returns on every living node (but one), by the node's address and id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0)(function)
    pending = {
        f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})": task.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(*arguments)
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] != but_node
    }
    return {host: ray.get(reference, timeout=NODE_SECONDS) for host, reference in pending.items()}


def _read_records(run_dir: str) -> dict[str, bytes]:
    folder = Path(run_dir)
    paths = [*folder.glob("logs/rank-*.log"), *folder.glob("errors/*.json"), *folder.glob("stalls/rank-*")]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in paths}


def _sees(path: str) -> str | None:
    return None if Path(path).exists() else "a file of another machine"


def _versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("torch", "horovod"):
        try:
            found.append(f"{package} {version(package).partition('+')[0]}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)
