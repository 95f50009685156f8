"""MLflow's own store, whose creation is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from runner.schema import Tracking
from runner.tracking import open_record
from tests.conftest import environment

CREATE = """
import sys
from pathlib import Path
from runner.schema import Tracking
from runner.tracking import open_record
open_record(Tracking(), Path(sys.argv[1]), Path(sys.argv[1], "run"), "first")
"""


@pytest.mark.parametrize(
    "size",  # bytes of the file when the kill comes; it has 900,000 in the end
    [300_000, *(pytest.param(size, marks=pytest.mark.faults) for size in (0, 1, 100_000, 500_000, 700_000))],
)
def test_a_store_whose_creation_was_killed_is_created_anew(tmp_path, size):
    creating = subprocess.Popen([sys.executable, "-c", CREATE, str(tmp_path)], env=environment())
    while not any(path.stat().st_size >= size for path in tmp_path.glob("*mlflow.db")):
        assert creating.poll() is None
        time.sleep(0.001)
    os.kill(creating.pid, signal.SIGKILL)
    creating.wait()
    record = open_record(Tracking(), tmp_path, tmp_path / "run", "second")
    record.finish("FINISHED")
    record.close()
    assert not list(tmp_path.glob(".*"))
