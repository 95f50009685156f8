"""`python -m runner doctor`: a line a check, the fix where one fails, JSON for programs."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from runner import __main__ as door
from runner.errors import ConfigError, PreflightError
from runner.run_folder import RESULT, RunFile, now, read_result
from runner.verbs.doctor import check_packages

CHECKS = ["packages", "resources", "data", "memory", "batch", "store", "horovod", "disk", "plan"]


@pytest.fixture
def doctor(tmp_path, monkeypatch, capsys):
    """doctor(*arguments) → (exit code, lines)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        code = door.run(["doctor", "scaling.num_workers=1", *arguments])
        return code, capsys.readouterr().out.splitlines()

    return run


def by_name(lines):
    return {line.split()[1]: line for line in lines if line.split()[0] in ("ok", "FAIL", "skip")}


def test_all_is_well(doctor):
    code, lines = doctor()
    found = by_name(lines)
    assert code == 0
    assert list(found) == [*CHECKS, "nodes"]
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert lines[-1] == "skip  nodes      no cluster  (0.0 s)"
    assert "torch 2." in found["packages"]
    assert "1 worker × 1 CPU; this machine has " in found["resources"]
    assert "1,438 training and 359 validation rows of 1 × 8 × 8 values" in found["data"]
    assert "inputs (32, 1, 8, 8) and targets (32,) went through model and loss" in found["batch"]
    assert "Horovod 0.28.1 with Gloo" in found["horovod"]
    assert "batch 32 = 1 worker × 32 rows; " in found["plan"]
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


def test_each_failure_is_a_line_with_the_fix_and_the_rest_is_seen(doctor):
    code, lines = doctor(
        "scaling.resources_per_worker.CPU=1000",
        "tracking.uri=http://127.0.0.1:9",
        "model.hidden=[1000000,1000000]",
        "skip_checks=[horovod]",
    )
    found = by_name(lines)
    assert code == 2
    assert "type scaling." in found["resources"]
    assert "nothing answers there" in found["store"]
    assert found["memory"].startswith("FAIL")
    assert " of memory for 1 worker, this machine has " in found["memory"]
    assert found["horovod"].split()[:3] == ["skip", "horovod", "skip_checks=[horovod]"]
    assert found["batch"].endswith(": it needs what failed  (0.0 s)")  # a model of that size is not made
    assert [line.split()[0] for line in found.values()].count("FAIL") == 3


def test_what_keeps_the_plan_from_being_made_is_the_last_line(doctor):
    code, lines = doctor("checkpoint.monitor=val/nothing")
    assert code == 2
    assert by_name(lines)["plan"].startswith(
        "FAIL  plan       checkpoint.monitor=val/nothing: a classification measures "
    )


def test_json(doctor):
    code, lines = doctor("--json", "tracking.uri=http://127.0.0.1:9")
    told = json.loads("\n".join(lines))
    assert (code, told["ok"]) == (2, False)
    assert {each["name"]: each["status"] for each in told["checks"]} == {
        **dict.fromkeys(CHECKS, "ok"),
        "nodes": "skip",
        "store": "FAIL",
    }
    assert set(told["checks"][0]) == {"name", "status", "text", "seconds"}
    assert told["runs"] == []


def test_json_is_all_that_is_printed(doctor, tmp_path):
    (tmp_path / "talks.py").write_text("import torch\nprint('hello')\nNet = torch.nn.Linear\n")
    (tmp_path / "c" / "model").mkdir(parents=True)
    (tmp_path / "c" / "model" / "own.yaml").write_text(
        "_target_: talks.Net\nin_features: null\nout_features: null\n"
    )
    _, lines = doctor("--config-dir=c", "model=own", "dataset=breast_cancer", "--json")
    assert json.loads("\n".join(lines))["ok"]


def test_a_config_that_is_none_is_refused(doctor):
    with pytest.raises(ConfigError, match=r"; type model=mlp$"):
        doctor("model=mpl")


def test_a_lost_run_is_marked(doctor, tmp_path):
    run_dir = tmp_path / "outputs" / "runs" / "today" / "lost"
    run = RunFile(None, None, "", "", [], str(tmp_path), [], now())
    run.write(run_dir)
    _, lines = doctor()
    assert lines[-1].startswith(
        "outputs/runs/today/lost: driver lost: its process was killed, FAILED now; go on with"
    )
    assert (run_dir / RESULT).exists()
    assert read_result(run_dir)["status"] == "FAILED"


@pytest.mark.parametrize(
    ("needed", "line"),
    [
        ("torch==1.0", "torch is 2.13.0+cpu, runner needs ==1.0; type make setup"),
        ("no-such-package>=2", "no-such-package is not installed; type make setup"),
    ],
)
def test_packages_that_are_not_those_of_the_lock(monkeypatch, needed, line):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [needed, 'other; extra == "dev"'])
    with pytest.raises(PreflightError) as refused:
        check_packages()
    assert str(refused.value) == line
