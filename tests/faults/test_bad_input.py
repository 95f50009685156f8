"""Every mistake of bad_input.py as a command: one line, exit code 2, in less than 3 s, and nothing is launched."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input import CASES, Bad, write_files
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
