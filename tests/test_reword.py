"""Hydra's errors of several lines, as exactly one."""

import dataclasses
import sys

import pytest

from runner import schema
from runner.__main__ import run
from runner.errors import ConfigError
from runner.reword import EXPECTED, flags_and_overrides, reword
from tests.composed import CONF, compose

KEYS = ", ".join(field.name for field in dataclasses.fields(schema.Experiment))
TRAINER = ", ".join(field.name for field in dataclasses.fields(schema.Trainer))


def options(group):
    return ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml")))


def reworded(*overrides):
    with pytest.raises(EXPECTED) as raised:
        compose(overrides)
    error = reword(raised.value, list(overrides), compose)
    assert type(error) is ConfigError
    assert error.exit_code == 2
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model=mpl", f"model=mpl: no such option; conf/model has {options('model')}; type model=mlp"),
        (
            "experiment=digit",
            f"experiment=digit: no such option; conf/experiment has {options('experiment')}; type experiment=digits",
        ),
        (
            "lr_scaling=xyzzy",
            f"lr_scaling=xyzzy: no such option; conf/lr_scaling has {options('lr_scaling')}",
        ),
    ],
)
def test_unknown_option(override, line):
    assert reworded(override) == line


def test_unknown_group():
    line = reworded("modle=mlp")
    head, _, rest = line.partition("; the config has ")
    known, _, remedy = rest.partition("; ")
    assert head == "modle: no such key"
    assert sorted(known.split(", ")) == sorted(KEYS.split(", "))
    assert remedy == "type model=mlp"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "trainer.epohs=3",
            f"trainer.epohs: no such key; trainer has {TRAINER}; type trainer.epochs=3",
        ),
        (
            "optimizer.momentun=0.9",
            (
                "optimizer.momentun: no such key; optimizer has lr, decay_norms_and_biases, param_groups, _target_, momentum, weight_decay, nesterov; "
                "type optimizer.momentum=0.9"
            ),
        ),
        (
            "scaling.resources_per_worker.CPPU=1",
            (
                "scaling.resources_per_worker.CPPU: no such key; scaling.resources_per_worker has CPU, GPU; "
                "type scaling.resources_per_worker.CPU=1"
            ),
        ),
        (
            "trainer.xyzzy=3",
            f"trainer.xyzzy: no such key; trainer has {TRAINER}",
        ),
    ],
)
def test_unknown_key(override, line):
    assert reworded(override) == line


def test_unknown_key_beside_good_overrides():
    assert reworded("model=linear", "trainer.epohs=3", "seed=1").endswith("; type trainer.epochs=3")


def test_misspelt_group_of_a_dotted_key_names_the_nearest_group():
    line = reworded("optimzer.lr=1")
    assert line.startswith("optimzer: no such key; the config has ")
    assert line.endswith("; type optimizer.lr=1")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "trainer.epochs=abc",
            "trainer.epochs=abc: must be a whole number; type trainer.epochs=1",
        ),
        ("seed=a", "seed=a: must be a whole number; type seed=1"),
        (
            "checkpoint.keep=1.5",
            "checkpoint.keep=1.5: must be a whole number; type checkpoint.keep=1",
        ),
        (
            "trainer.epochs=[1,2]",
            "trainer.epochs=[1,2]: must be a whole number; type trainer.epochs=1",
        ),
        (
            "horovod.compression=fp32",
            "horovod.compression=fp32: must be one of none, fp16; type horovod.compression=none",
        ),
        ("trainer.epochs=null", "trainer.epochs=null: must have a value"),
        ("trainer.epochs=", "trainer.epochs=: must be a whole number; type trainer.epochs=1"),
        (
            "horovod.nics=lo",
            "horovod.nics=lo: must be a list; type horovod.nics=[…]",
        ),
        ("~trainer.epochs", "trainer.epochs: cannot be deleted, only be given another value"),
        ("~model.foo", "model.foo: there is no model.foo to delete"),
    ],
)
def test_wrong_value(override, line):
    assert reworded(override) == line


@pytest.mark.parametrize("override", ["trainer.epochs", "model.hidden=[1", "seed=(", "a b=c"])
def test_what_is_no_override(override):
    assert reworded(override) == f"{override}: not an override; type key=value, or python -m runner --help"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["seed=1", "--nope"], "unrecognized arguments: --nope"),
        (["--cfg", "nope"], "--cfg/-c: invalid choice: 'nope' (choose from 'job', 'hydra', 'all')"),
        (["seed=1", "--config-dir"], "--config-dir/-cd: expected one argument"),
    ],
)
def test_a_flag_that_there_is_not_is_one_line(arguments, line):
    with pytest.raises(ConfigError) as raised:
        flags_and_overrides(arguments)
    assert str(raised.value) == f"{line}; type python -m runner --help"


def test_flags_may_stand_anywhere():
    given = ["model=cnn", "--config-dir", "model=cnn", "-m", "seed=1,2", "--cfg", "job"]
    flags = ["--config-dir", "model=cnn", "-m", "--cfg", "job"]
    assert flags_and_overrides(given) == (flags, ["model=cnn", "seed=1,2"])
    overrides = ["+a=1", "~b", "c@d=e", "hydra.run.dir=/x"]
    assert flags_and_overrides(overrides) == ([], overrides)
    assert flags_and_overrides(["~seed", "--info"]) == (["--info", "--"], ["~seed"])
    assert flags_and_overrides(["-sc", "install=bash"]) == (["-sc"], ["install=bash"])


def test_the_folders_and_files_of_the_command_line(tmp_path, monkeypatch, capsys):
    """A config folder that is not there, a YAML with a tab, a run folder that cannot be made: one line each."""
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.argv", ["runner"])
    (tmp_path / "configs" / "experiment").mkdir(parents=True)
    (tmp_path / "configs" / "experiment" / "tab.yaml").write_text("trainer:\n\tepochs: 3\n")
    (tmp_path / "file").write_text("")
    for arguments, line in (
        (
            ["--config-dir", f"{tmp_path}/nope", "dry_run=true"],
            f"Additional config directory '{tmp_path}/nope' not found",
        ),
        (
            ["--config-dir", f"{tmp_path}/configs", "experiment=tab"],
            (
                f"{tmp_path}/configs/experiment/tab.yaml:2: no valid YAML (found character '\\t' that cannot start any token); "
                "indent with spaces"
            ),
        ),
        (
            [f"hydra.run.dir={tmp_path}/file/run"],
            f"hydra.run.dir={tmp_path}/file/run: cannot be made (Not a directory)",
        ),
    ):
        with pytest.raises(ConfigError) as raised:
            run(arguments)
        assert str(raised.value).startswith(line)
        assert "\n" not in str(raised.value)
