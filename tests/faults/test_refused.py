"""More than the machine has. The message is tested in tests/end_to_end/test_ends.py."""

from __future__ import annotations

import time

import pytest


@pytest.mark.faults
@pytest.mark.parametrize(
    ("resource", "said", "fits"),
    [
        ("CPU=1", "64 workers × 1 CPU need 64 CPUs", "scaling.num_workers="),
        ("GPU=1", "64 workers × 1 GPU need 64 GPUs", "scaling."),
    ],
)
def test_more_than_there_is_is_refused(tmp_path, command, measure, resource, said, fits):
    measured = measure(12, f"64 workers of {resource}")
    before = time.time()
    refused = command(
        tmp_path, tmp_path / "run", "scaling.num_workers=64", f"scaling.resources_per_worker.{resource}"
    )
    outcome = refused.wait(30)
    measured.seconds("end of the command", outcome.ended - before, 3)
    assert outcome.code == 2
    assert outcome.error.startswith(f"scaling.num_workers=64: {said}, this machine has ")
    assert f"; type {fits}" in outcome.error
    assert not list(tmp_path.glob("outputs/mlflow*"))
