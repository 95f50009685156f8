"""The door: verbs, exit codes, one line on stderr, what is imported from where."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runner import __main__ as door
from runner.errors import ConfigError, RunnerError
from tests.composed import CONF

PROJECT = CONF.parent


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory of its own; what `run` changes in the process is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["runner"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    return tmp_path


def runner(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    environment.pop("HYDRA_FULL_ERROR", None)
    command = [sys.executable, "-m", "runner", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def refusal(*arguments):
    with pytest.raises(RunnerError) as refused:
        door.run(list(arguments))
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)
    return str(refused.value)


def exit_code(monkeypatch, run):
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(door, "run", run)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")
    try:
        return door.command()
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_misspelt_verb_is_refused_with_the_nearest(here):
    line = refusal("trian", "model=mlp")
    assert line.startswith("trian: no such verb; verbs are ")
    assert line.endswith("; type train")


def test_a_verb_like_none_is_refused(here):
    assert refusal("xyzzy").endswith("overrides are key=value")


@pytest.mark.parametrize("arguments", [["model=mpl"], ["train", "model=mpl"]])
def test_a_misspelt_option_is_refused_in_one_line(here, arguments):
    assert (
        refusal(*arguments)
        == "model=mpl: no such option; conf/model has cnn, linear, mlp, resnet, tabular, transformer; type model=mlp"
    )


@pytest.mark.parametrize("override", ["trainer=5", "scaling=[1]", "model=null", "=3"])
def test_a_group_given_a_value_that_is_no_option_is_refused_in_one_line(here, override):
    assert override.partition("=")[0] in refusal(override)


def test_a_value_out_of_range_is_refused_before_anything_is_written(here):
    assert refusal("optimizer.lr=-1").startswith("optimizer.lr=-1.0: must be a finite number above 0")
    assert [path for path in here.rglob("*") if path.name in ("result.json", "mlflow.db")] == []


def test_a_refusal_on_the_command_line_is_one_line_on_stderr_and_exit_code_2(tmp_path):
    done = runner("model=mpl", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "model=mpl: no such option; conf/model has cnn, linear, mlp, resnet, tabular, transformer; type model=mlp"
    )


def test_cfg_job_prints_the_config_and_trains_nothing(tmp_path):
    done = runner("--cfg", "job", "trainer.epochs=7", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  epochs: 7\n" in done.stdout
    assert not (tmp_path / "outputs").exists()


def test_help_names_the_groups_and_examples(tmp_path):
    done = runner("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: python -m runner [group=option ...] [key=value ...]" in done.stdout
    assert "lr_scaling: adam_sde, adascale, adasum, legw, linear, linear_warmup, none, sqrt" in done.stdout


def test_the_command_line_loads_neither_torch_nor_ray_nor_mlflow():
    code = "import sys, runner.__main__; print([m for m in ('torch', 'ray', 'mlflow') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("error", "code"), [(ConfigError("what to type"), 2), (RunnerError("what to type"), 1)]
)
def test_an_error_ends_with_its_exit_code_and_one_line(monkeypatch, capsys, error, code):
    def run(arguments):
        raise error

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(door, "run", run)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    try:
        assert door.command() == code
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert capsys.readouterr().err == "error: what to type\n"


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "interrupted by Ctrl-C"), (signal.SIGTERM, 143, "terminated by SIGTERM")],
)
def test_a_signal_ends_the_process_with_its_exit_code_and_one_line(number, code, line):
    program = (
        "import os\nfrom runner import __main__ as door\n"
        f"door.run = lambda arguments: os.kill(os.getpid(), {int(number)})\ndoor.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (code, f"error: {line}\n")


def test_code_is_imported_from_the_project_then_here_then_beside_the_config_dir(here):
    first = [str(PROJECT), str(here)]
    assert door.import_roots([]) == tuple(first)
    assert door.import_roots(["model=mlp", "--config-dir", "mine/conf"]) == (*first, str(here / "mine"))
    assert door.import_roots(["--config-dir=/far/conf"]) == (*first, "/far")
    assert door.import_roots(["-cd", "/far/conf"]) == (*first, "/far")


def test_import_roots_are_not_repeated(monkeypatch):
    monkeypatch.chdir(PROJECT)
    assert door.import_roots(["--config-dir", str(Path("conf").absolute())]) == (str(PROJECT),)


def test_a_user_s_own_files_never_hide_the_project_s(here):
    sys.path[:] = [str(here), *sys.path]
    refusal("model=mpl")
    assert sys.path[:2] == [str(PROJECT), str(here)]
    assert "" not in sys.path
