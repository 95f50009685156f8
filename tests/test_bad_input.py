"""Every mistake of bad_input.py is refused in one line, without Ray; `make faults` runs each as a command, and prints the table
with the seconds it took."""

from __future__ import annotations

import sys

import pytest

from runner import __main__ as door
from runner.errors import RunnerError
from tests.bad_input import CASES, Bad, write_files


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    write_files(folder)
    return folder


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.name)
def test_a_mistake_is_one_line(bad: Bad, here, monkeypatch):
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "argv", ["runner"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(RunnerError) as refused:
        door.run(list(bad.arguments))
    line = str(refused.value)
    assert refused.value.exit_code == 2
    assert "\n" not in line
    assert line.startswith(bad.says.replace("{here}", str(here)))
    assert line.endswith(bad.ends)
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
