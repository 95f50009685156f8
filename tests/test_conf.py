"""The files under conf/: each composes, says the command that selects it, and keeps to the schema."""

import dataclasses
import re
import shlex

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner import config, schema, sweep_schema
from runner.errors import ConfigError
from tests.composed import CONF, load

FILES = sorted(CONF.rglob("*.yaml"))
OPTIONS = [f"{path.parent.name}={path.stem}" for path in FILES if path.parent != CONF]
TYPED = {
    "trainer": schema.Trainer,
    "checkpoint": schema.Checkpoint,
    "horovod": schema.Horovod,
    "tracking": schema.Tracking,
    "scaling": schema.Scaling,
    "search": schema.Search,
    "sweep": schema.Sweep,
}


def short(path):
    return str(path.relative_to(CONF))


def comment(path):
    """The comment lines at the top, without their `#`, as one text."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return "\n".join(lines)


def command(path):
    """The overrides of the command that a file's comment names; of a multirun, those of a job with the first values."""
    found = re.search(r"python -m runner ([^\n]*)", comment(path))
    assert found, f"{short(path)} must start with a comment with the command that selects it"
    flag, *overrides = ["", *shlex.split(found.group(1).rstrip("."))]
    if overrides[0] == "--multirun":
        flag, *overrides = overrides
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert any(override.is_sweep_override() for override in parsed) == (flag == "--multirun")
    return [first_job(override) for override in parsed]


def first_job(override):
    if override.is_interval_sweep():
        return f"{override.get_key_element()}={override.value().start}"
    if override.is_sweep_override():
        return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
    return override.input_line


def test_every_group_has_options():
    assert {option.split("=")[0] for option in OPTIONS} >= {
        "model", "dataset", "optimizer", "lr_scaling", "scheduler", "scaling", "trainer", "checkpoint",
        "horovod", "tracking", "search", "sweep", "experiment", "debug",
    }  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_loads_and_takes_its_arguments(option):
    if option == "lr_scaling=adasum":  # this Horovod has none
        with pytest.raises(ConfigError, match=r"^lr_scaling=adasum: Adasum needs .*; type lr_scaling=sqrt$"):
            load(option)
    elif "???" in (CONF / f"{option.replace('=', '/')}.yaml").read_text():
        with pytest.raises(ConfigError, match=r"has no value"):
            load(option)
    else:
        config.check_targets(load(option))


@pytest.mark.parametrize("path", [path for path in FILES if path.parent != CONF], ids=short)
def test_the_command_in_a_file_s_comment_works_and_concerns_its_group(path):
    overrides = command(path)
    assert any(re.match(rf"\+?{path.parent.name}[.=]|experiment=", override) for override in overrides)
    if path.stem == "adasum":
        with pytest.raises(
            ConfigError, match=r"^horovod.op=adasum: .*; type horovod.op=average lr_scaling=sqrt$"
        ):
            load(*overrides)
        return
    config.check_targets(load(*overrides))


@pytest.mark.parametrize("path", FILES, ids=short)
def test_every_file_starts_with_a_comment_and_is_short(path):
    assert "python -m runner" in comment(path)
    lines = len(path.read_text().splitlines())
    assert 2 <= lines <= (70 if path.parent == CONF else 15)


@pytest.mark.parametrize("path", FILES, ids=short)
def test_no_key_is_written_twice_and_no_tab_is_in_a_file(path):
    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader, node):
        keys = [loader.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{short(path)}: a key is there twice: {keys}"
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    text = path.read_text()
    assert "\t" not in text
    assert isinstance(yaml.load(text, Strict), dict)


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name in TYPED], ids=short)
def test_a_typed_group_s_file_writes_only_fields_of_the_schema(path):
    fields = {field.name for field in dataclasses.fields(TYPED[path.parent.name])}
    assert set(yaml.safe_load(path.read_text())) <= fields


@pytest.mark.parametrize(
    "name",
    [
        "trainer/default",
        "checkpoint/default",
        "horovod/default",
        "tracking/mlflow",
        "search/grid",
        "sweep/default",
    ],
)
def test_a_default_file_shows_the_schema_s_own_defaults(name):
    path = CONF / f"{name}.yaml"
    defaults = TYPED[path.parent.name]()
    for key, value in yaml.safe_load(path.read_text()).items():
        default = getattr(defaults, key)
        assert value == getattr(default, "value", default), key


def test_the_way_on_after_a_failed_job_is_a_word_that_python_has_too():
    assert load("sweep.on_failure=continue").sweep.on_failure is sweep_schema.OnFailure["continue"]
    assert load("sweep.on_failure=stop").sweep.on_failure is sweep_schema.OnFailure.stop
