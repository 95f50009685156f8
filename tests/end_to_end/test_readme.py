"""Every command and program of the README, run as it stands there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from runner import __main__ as door
from tests.conftest import environment

PROJECT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in BLOCK.findall((PROJECT / "README.md").read_text())
    for line in block.splitlines()
]
PROGRAMS = re.findall(r"^```python\n(.*?)^```", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
TRAINED_ELSEWHERE = "python -m runner model=mlp scaling.num_workers=4"  # test_main_job.py runs just this
RUNNER = [line for line in COMMANDS if line.startswith("python -m runner ") and line != TRAINED_ELSEWHERE]
OTHER = [line for line in RUNNER if re.search(" --cfg| --help| prove | doctor ", line)]
TRAINING = [line for line in RUNNER if line not in OTHER]
Ran = tuple[Path, subprocess.CompletedProcess[str]]  # where, and how it ended


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a user in the activated environment would."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_all_commands_are_covered() -> None:
    rest = [line for line in COMMANDS if line not in (*RUNNER, TRAINED_ELSEWHERE)]
    assert rest == [
        "make run",
        "make test",
        "source .venv/bin/activate",
        'eval "$(runner -sc install=bash)"',
        "mlflow ui --backend-store-uri sqlite:///outputs/mlflow.db",
        "horovodrun -np 2 python -m runner experiment=quickstart",  # test_horovodrun.py runs just this
    ]


def results(folder: Path) -> list[str]:
    """The status of every run below a working directory."""
    paths = (folder / "outputs").rglob("[0-9]*/result.json")
    return [json.loads(path.read_text())["status"] for path in paths]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ran]]]:
    """One after the other, beside the trainings in this process: they all spend much of their time waiting."""

    def run(line: str) -> Ran:
        folder = tmp_path_factory.mktemp("other")
        return folder, shell(line, folder)

    with ThreadPoolExecutor(1) as pool:
        yield {line: pool.submit(run, line) for line in OTHER}
        pool.shutdown(cancel_futures=True)


def jobs_of(line: str) -> int:
    """How many trainings a command means."""
    if "dry_run" in line:
        return 0
    if found := re.search(r"search.trials=(\d+)", line):
        return int(found[1])
    return 2 ** line.count(",") if "--multirun" in line else 1


@pytest.mark.usefixtures("_warm_ray", "others")
@pytest.mark.parametrize("line", TRAINING)
def test_the_training_succeeds(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, where one Ray serves all of them."""
    (tmp_path / "data").mkdir()
    table = pd.DataFrame({"age": range(100), "city": ["Ulm", "Łódź"] * 50, "label": [0, 0, 1, 1] * 25})
    table.to_parquet(tmp_path / "data" / "part-0.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert door.run(shlex.split(line)[3:]) == 0
    assert results(tmp_path) == ["FINISHED"] * jobs_of(line)


@pytest.mark.usefixtures("_warm_ray")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_runs(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(compile(program, "README.md", "exec"), {})  # noqa: S102 (what a reader would run)


@pytest.mark.parametrize("line", OTHER)
def test_the_command_succeeds(line: str, others: dict[str, Future[Ran]]) -> None:
    folder, done = others[line].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(results(folder)) <= {"FINISHED"}  # of the trainings of a proof


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_calls_what_the_readme_says(target: str) -> None:
    done = shell(f"make --no-print-directory -n {target}", PROJECT)
    assert done.returncode == 0, done.stderr
    wanted = {
        "run": ["-m runner model=mlp scaling.num_workers=4"],
        "test": ["ruff format --check", "ruff check", "mypy", "pytest"],
    }
    assert all(command in done.stdout for command in wanted[target])


def test_ci_calls_make_test_alone() -> None:
    lines = [
        line
        for line in (PROJECT / ".ci" / "run").read_text().splitlines()
        if not line.startswith(("#", "set ", "cd "))
    ]
    assert [line for line in lines if line] == ["make test"]


def test_the_console_script_completes(tmp_path: Path) -> None:
    installed = shell("runner -sc install=bash", tmp_path)
    assert installed.returncode == 0, installed.stderr
    line = "runner model=ml"
    query = f'export COMP_LINE="{line}" COMP_POINT={len(line)}; {installed.stdout}\n'
    query += f'COMP_WORDS=({line}); COMP_CWORD=1; hydra_bash_completion; echo "${{COMPREPLY[@]}}"'
    completed = shell(query, tmp_path)
    assert "model=mlp" in completed.stdout, completed.stderr


def test_mlflow_opens_the_store(tmp_path: Path) -> None:
    assert shell("mlflow ui --help", tmp_path).returncode == 0
