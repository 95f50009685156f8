"""executor=train_v2 on a cluster of two nodes, of which one is lost: the training goes on with the workers that there is room for."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

from tests.conftest import environment

RAY = [
    sys.executable,
    "-m",
    "ray.scripts.scripts",
    "start",
    "--num-cpus=1",
    "--disable-usage-stats",
    "--block",
]


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """(the address of a cluster of two nodes, what ends the second one)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # A folder of its own (short: it holds sockets), so that no other program takes this for the machine's Ray.
    temporary = tempfile.mkdtemp(prefix="ray-")
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    port = address.partition(":")[2]
    started = []

    def start(*options):
        log = tmp_path / f"node-{len(started)}.log"
        with log.open("w") as file:
            node = subprocess.Popen(
                [*RAY, *options],
                cwd=tmp_path,
                env=environment(),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        started.append(node)
        while "--block" not in log.read_text():
            assert node.poll() is None, log.read_text()
            time.sleep(0.1)
        return node

    def end(node):
        if node.poll() is None:
            for process in (*psutil.Process(node.pid).children(recursive=True), node):
                process.kill()
        node.wait()

    try:
        start("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}")
        second = start(f"--address={address}")
        yield address, lambda: end(second)
    finally:
        for node in reversed(started):
            end(node)
        shutil.rmtree(temporary, ignore_errors=True)


@pytest.mark.faults
def test_a_lost_node_leaves_a_smaller_group(nodes, tmp_path, command, measure):
    measured = measure(1, "one of 2 nodes, train_v2 with executor.min_workers=1")
    address, lose = nodes
    run_dir = tmp_path / "outputs" / "runs" / "faults" / "run"
    driver = command(
        tmp_path,
        run_dir,
        f"hydra.run.dir={run_dir}",
        "executor=train_v2",
        "executor.min_workers=1",
        f"scaling.address={address}",
        "model.kind=slow",
        "model.seconds=0.1",
    )
    driver.until((run_dir / "checkpoints" / "step-00000009").exists)
    lose()
    outcome = driver.wait(200)
    assert outcome.end == (0, "FINISHED", "FINISHED"), outcome.text
    assert outcome.result["restarts"] == 1
    (line,) = [line for _, line in outcome.lines if " on 1 worker instead of 2: " in line]
    assert "global batch 16 instead of 32" in line
    assert "lr 0.001 (base, batch 16) × 1 (linear: 16/16) = 0.001" in line
    assert line in outcome.events
    assert outcome.result["metrics"]["epoch"] == 4
    measured.holds("goes on with 1 worker, by the LR rule")
