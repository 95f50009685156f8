"""`horovodrun -np 2 python -m runner`: one driver, one screen, one run; and a refusal that is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.composed import CONF
from tests.conftest import environment

COMMAND = "horovodrun -np 2 python -m runner experiment=quickstart"  # of the README


def launched(folder: Path, *more: str) -> tuple[int, list[str]]:
    """Exit code and output of the command, as in the activated environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*COMMAND.split(), *more],
        cwd=folder,
        env={**environment(), "PATH": path, "PYTHONPATH": str(CONF.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=200,
    )
    return done.returncode, done.stdout.splitlines()


def test_rank_0_alone_is_the_driver(tmp_path: Path) -> None:
    code, lines = launched(tmp_path)
    assert code == 0, lines
    assert {line.partition(":")[0] for line in lines} == {"[0]<stdout>"}
    assert sum("── finished" in line for line in lines) == 1
    (run_dir,) = tmp_path.glob("outputs/runs/*/*")
    assert json.loads((run_dir / "result.json").read_text())["status"] == "FINISHED"
    assert [path.name for path in (run_dir / "logs").iterdir()] == ["rank-1.log"]
    overrides = (run_dir / ".hydra" / "overrides.yaml").read_text().splitlines()
    assert overrides[-2:] == ['- "executor=horovodrun"', '- "scaling.num_workers=2"']


def test_a_refusal_is_one_line_of_rank_0(tmp_path: Path) -> None:
    code, lines = launched(tmp_path, "scaling.num_workers=3")
    line = "error: scaling.num_workers=3: horovodrun has started 2; type horovodrun -np 3 …"
    assert [line for line in lines if line.startswith("[")] == [f"[0]<stderr>:{line}"]
    assert (code, list(tmp_path.iterdir())) == (1, [])  # horovodrun's own; that of rank 0 is 2
    assert lines[-3:] == ["Process name: 0", "Exit code: 2", ""]
