"""Every mistake of bad_input.py as a command: one line, exit code 2, in less than 3 s, and nothing is launched."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.bad_input import CASES, NPY, Bad, write_files
from tests.faults.command import Command
from tests.faults.table import BAD_INPUT, Measured


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("bad-input")
    write_files(here)
    return here


@pytest.mark.faults
@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_a_mistake_is_refused_within_3_seconds(
    bad: Bad, folder: Path, measure: Callable[[int, str], Measured]
) -> None:
    measured = measure(BAD_INPUT, bad.name)
    before = time.time()
    command = Command(folder, folder / "run", *bad.arguments)
    try:
        outcome = command.wait(30)
    finally:
        command.close()
    lines = command.text.splitlines()
    measured.holds(lines[-1] if lines else "nothing was said")
    measured.seconds("after", outcome.ended - before, 3)
    assert outcome.code == 2
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert lines[-1].startswith("error: " + bad.says.replace("{here}", str(folder)))
    assert lines[-1].endswith(bad.ends)
    assert not list(folder.glob("outputs/mlflow*"))


@pytest.mark.faults
@pytest.mark.parametrize("ingest", ["ray_data", "dataloader"])
def test_a_bad_row_behind_the_first_ones_stops_the_training(
    ingest: str, tmp_path: Path, measure: Callable[[int, str], Measured]
) -> None:
    """The first 10,000 rows are checked before the launch."""
    measured = measure(BAD_INPUT, f"row 15,000 of 16,000, {ingest}")
    inputs = np.zeros((16_000, 8), np.float32)
    inputs[15_000, 1] = np.nan
    np.save(tmp_path / "inputs.npy", inputs)
    np.save(tmp_path / "targets.npy", np.arange(16_000) % 2)
    settings = (
        "dataset.stream=true",
        f"dataset.ingest={ingest}",
        "dataset.val_fraction=0.01",
        "tracking=none",
    )
    command = Command(
        tmp_path,
        tmp_path / "run",
        "hydra.run.dir=run",
        "scaling.num_workers=1",
        "trainer.epochs=1",
        *NPY,
        *settings,
    )
    try:
        outcome = command.wait(90)
    finally:
        command.close()
    (line,) = [line for line in command.text.splitlines() if line.startswith("error: ")]
    measured.holds(line)
    assert outcome.code == 1
    assert line.startswith("error: rank 0: ")
    assert f"{tmp_path}/inputs.npy: row 15000: nan is not finite" in line
