"""The config of an earlier run, with what is typed to go on with it."""

import pytest
from omegaconf import OmegaConf

from runner import config
from runner.config import changed
from runner.errors import ConfigError
from runner.schema import OnNonfinite
from tests.composed import compose

STORED = config.to_yaml(compose())


def experiment_of(*overrides, stored=STORED):
    return config.load(changed(stored, list(overrides)))


def test_without_overrides_it_is_the_run_s_own():
    assert config.to_yaml(changed(STORED, [])) == STORED
    assert experiment_of() == config.load(compose())


def test_overrides_are_typed_by_the_schema():
    found = experiment_of(
        "trainer.epochs=7",
        "trainer.on_nonfinite=skip",
        "trainer.patience=null",
        "checkpoint.every_minutes=2",
        "tracking.run_name='a b, c'",
        "horovod.nics=[lo,'eth 0']",
        "scaling.resources_per_worker.CPU=1",
        "verbose=true",
        "checkpoint.every_steps=${trainer.epochs}",
        "trainer.max_steps=3",
        "trainer.max_steps=5",  # the last one counts
    )
    assert (found.trainer.epochs, found.trainer.max_steps, found.trainer.patience) == (7, 5, None)
    assert found.trainer.on_nonfinite is OnNonfinite.skip
    assert (found.checkpoint.every_minutes, found.checkpoint.every_steps) == (2.0, 7)
    assert (found.tracking.run_name, found.horovod.nics) == ("a b, c", ["lo", "eth 0"])
    assert (found.scaling.resources_per_worker.CPU, found.verbose) == (1.0, True)


def test_a_run_from_before_a_key_existed_has_its_default():
    stored = OmegaConf.create(STORED)
    for group, key in (("trainer", "on_nonfinite"), ("trainer", "max_failures"), ("checkpoint", "keep_best")):
        del stored[group][key]
    del stored["resume"], stored["horovod"]
    found = experiment_of("trainer.max_failures=1", stored=OmegaConf.to_yaml(stored))
    usual = experiment_of()
    assert found.trainer.max_failures == 1
    assert (found.trainer.on_nonfinite, found.checkpoint.keep_best) == (OnNonfinite.stop, 1)
    assert (found.resume, found.horovod, found.model) == (usual.resume, usual.horovod, usual.model)


def test_interpolations_stay_as_they_were_stored(monkeypatch):
    monkeypatch.setenv("RUNNER_TEST_TOKEN", "canary")
    stored = STORED.replace("run_name: null", "run_name: ${oc.env:RUNNER_TEST_TOKEN}")
    composed = changed(stored, ["trainer.epochs=3"])
    assert "canary" not in config.to_yaml(composed)
    assert config.load(composed).tracking.run_name == "canary"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer.epochs=abc", "must be a whole number; type trainer.epochs=1"),
        ("trainer.epochs=1.5", "must be a whole number; type trainer.epochs=1"),
        ("trainer.epochs=", "must be a whole number; type trainer.epochs=1"),
        ("trainer.on_nonfinite=skipp", "must be one of stop, skip, ignore; type trainer.on_nonfinite=skip"),
        ("trainer.epoks=3", "Key 'epoks' not in 'Trainer'"),
        ("tracking.uri=a=b", "mismatched input '=' expecting <EOF>"),
        ("trainer.epochs=x(", "no viable alternative at input 'x('"),
        ("tracking.run_name=a,b", "a run goes on with one value for each key, not with a sweep"),
        ("trainer.epochs=range(3,9)", "a run goes on with one value for each key, not with a sweep"),
    ],
)
def test_what_does_not_fit_is_one_line_that_names_it(override, line):
    with pytest.raises(ConfigError) as refused:
        experiment_of("trainer.max_steps=3", override)
    assert str(refused.value) == f"{override}: {line}"


def test_a_value_out_of_range_is_refused_as_in_any_config():
    with pytest.raises(ConfigError, match=r"^trainer.epochs=0: must be 1 or more; type trainer.epochs=1$"):
        experiment_of("trainer.epochs=0")


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        ("trainer: {gone: 1}", "Key 'gone' not in 'Trainer'"),
        ("gone: 1", "Key 'gone' not in 'BaseSchema'"),
        ("a: [", "while parsing a flow node"),
        ("- a", "Cannot merge DictConfig with ListConfig"),
    ],
)
def test_a_stored_config_that_is_none_is_one_line(stored, reason):
    with pytest.raises(ConfigError) as refused:
        changed(stored, [])
    assert str(refused.value) == (
        f"the run's stored config is none that this version of runner takes: {reason}"
    )
