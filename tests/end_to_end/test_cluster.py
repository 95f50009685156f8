"""Joining a running Ray: the code travels, whole CPUs, and the refusals."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runner.executors import nodes
from tests.conftest import environment
from tests.end_to_end.conftest import Finished, Train

CPUS = 3


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray head of its own, which knows nothing of the driver's folder, and asks for a token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    options = [
        f"--port={port}",
        f"--num-cpus={CPUS}",
        "--include-dashboard=false",
        "--disable-usage-stats",
        '--resources={"big_disk": 2}',
        "--block",
    ]
    elsewhere = tmp_path_factory.mktemp("head")
    # A folder of its own (short: it holds sockets), so that no other program takes this for the machine's Ray.
    temporary = tempfile.mkdtemp(prefix="ray-")
    options.append(f"--temp-dir={temporary}")
    token = elsewhere / "token"  # the machine may have none yet
    token.write_text(secrets.token_hex(32))
    with_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    log = (elsewhere / "log").open("w")
    head = subprocess.Popen(
        [*ray, "start", "--head", *options],
        cwd=elsewhere,
        env={**environment(), **with_token},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    for _ in range(300):
        if "--block" in (elsewhere / "log").read_text():
            break
        assert head.poll() is None, (elsewhere / "log").read_text()
        subprocess.run(["sleep", "0.1"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in with_token.items():
            patch.setenv(name, value)
        yield f"127.0.0.1:{port}"
    for process in (*psutil.Process(head.pid).children(recursive=True), head):  # SIGTERM would drain for 30 s
        process.kill()
    head.wait()
    log.close()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.parametrize(
    "workers",
    [
        [f"scaling.num_workers={CPUS}", "+scaling.custom_resources.big_disk=0.5"],
        [
            "executor=ray_executor",
            "executor.num_hosts=1",
            f"executor.num_workers_per_host={CPUS}",
            "+scaling.custom_resources.big_disk=0.5",
        ],
    ],
    ids=["horovod_trainer", "ray_executor"],
)
def test_it_trains_with_the_users_code_on_whole_cpus(
    project: Path, address: str, command: Callable[..., Finished], workers: list[str]
) -> None:
    done = command(
        "--config-dir",
        "configs",
        "experiment=mine",
        "tracking=none",
        *workers,
        f"scaling.address={address}",
    )
    assert done.code == 0, done.stderr
    assert f"resources {CPUS} workers × 1 CPU" in done.stdout
    assert (" + 0.5 big_disk" in done.stdout) == any("big_disk" in each for each in workers)
    (result,) = done.results()
    assert result["metrics"]["epoch"] == 2
    assert "built with width 4" in (result["folder"] / "logs" / "rank-2.log").read_text()


def test_a_sweep_s_sessions_are_on_the_cluster_side_by_side(
    project: Path, address: str, command: Callable[..., Finished]
) -> None:
    done = command(
        "--multirun",
        "--config-dir",
        "configs",
        "experiment=mine",
        "scaling.num_workers=1",
        "model.width=4,5,6,7",
        "+scaling.custom_resources.big_disk=1",  # of which there are two
        f"scaling.address={address}",
    )
    assert done.code == 0, done.stderr
    assert "4 jobs: 4 finished" in done.stdout
    folders = [result["folder"] for result in done.results()]
    assert sorted((each / "logs" / "rank-0.log").read_text().splitlines()[0] for each in folders) == [
        f"built with width {width}" for width in (4, 5, 6, 7)
    ]
    assert len(list(folders[0].parent.glob("ray/session-*"))) == 2


def test_more_than_the_cluster_has_is_refused(
    project: Path, address: str, command: Callable[..., Finished]
) -> None:
    done = command("tracking=none", f"scaling.num_workers={CPUS + 1}", f"scaling.address={address}")
    assert done.code == 2
    assert done.stderr == (
        "error: scaling.num_workers=4: 4 workers × 1 CPU need 4 CPUs, the cluster has 3; "
        "type scaling.num_workers=3 or scaling.resources_per_worker.CPU=0.75\n"
    )


def test_a_cluster_that_does_not_answer_is_refused(tmp_path: Path, command: Callable[..., Finished]) -> None:
    done = command("tracking=none", "scaling.address=127.0.0.1:1")
    assert done.code == 2
    assert done.stderr.startswith(
        "error: scaling.address=127.0.0.1:1: nothing answers there (Connection refused)"
    )


def test_scaling_local_ignores_ray_address(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "runner",
            "scaling=local",
            "scaling.num_workers=64",
            "scaling.resources_per_worker.CPU=1",
        ],
        cwd=tmp_path,
        env={**environment(), "RAY_ADDRESS": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"this machine has {len(os.sched_getaffinity(0))}" in done.stderr


def test_records_of_other_nodes_are_collected(train: Train, tmp_path: Path) -> None:
    """The one node of the warm Ray stands in for another: its folder is read there and written here."""
    result = train("debug=fast", "tracking=none")
    here = tmp_path / "driver"
    (here / "logs").mkdir(parents=True)
    (here / "logs" / "rank-0.log").write_text("already here")
    (result["folder"] / "logs" / "rank-1.log").write_text("from afar")
    (result["folder"] / "errors").mkdir()
    (result["folder"] / "errors" / "rank-1.json").write_text("{}")
    nodes.collect(result["folder"], here, but_node="another")
    assert (here / "logs" / "rank-0.log").read_text() == "already here"
    assert (here / "logs" / "rank-1.log").read_text() == "from afar"
    assert (here / "errors" / "rank-1.json").read_text() == "{}"
