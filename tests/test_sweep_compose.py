"""A sweep's jobs are composed as Hydra composes them: the same config, flags and types, for any kind of override."""

import copy
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.utils import setup_globals
from hydra.types import RunMode
from omegaconf import OmegaConf

from runner import config
from runner.sweep.compose import Composer, without_hydra
from tests.composed import CONF

SWEEP = Path("/where/the/sweep/is")
TYPED = ["model=mlp", "trainer.epochs=3", "hydra.job.config.override_dirname.exclude_keys=[seed]"]
JOBS = {
    "nothing": [],
    "a value": ["optimizer.lr=0.5"],
    "values": ["optimizer.lr=1e-3", "seed=7", "trainer.epochs=9"],
    "a group": ["optimizer=adam"],
    "a group and a value of it": ["optimizer=adam", "optimizer.lr=0.3"],
    "the value first": ["optimizer.lr=0.3", "optimizer=adam"],
    "groups": ["optimizer=adamw", "model=transformer", "dataset=text", "lr_scaling=sqrt"],
    "an overlay": ["experiment=quickstart", "trainer.epochs=4"],
    "two overlays": ["experiment=quickstart", "debug=overfit"],
    "a list": ["model.hidden=[8,16]"],
    "a dict": ["scaling.resources_per_worker={CPU: 0.5}"],
    "a nested key": ["scaling.resources_per_worker.CPU=0.25"],
    "quoted": ["tracking.run_name='a=b, {c} \"d\"'"],
    "an interpolation": ["trainer.epochs=${seed}", "seed=5"],
    "null": ["study=null", "trainer.max_steps=null"],
    "the same key twice": ["optimizer.lr=0.1", "optimizer.lr=0.2"],
    "added": ["+model.wider=0.5"],
    "added or changed": ["++optimizer.lr=0.4", "++model.wider=0.1"],
    "a group of a package": ["+model@model.second=linear", "optimizer.lr=0.6"],
    "an overlay and its groups": ["experiment=quickstart", "model=mlp", "model.hidden=[4]"],
    "deleted": ["~optimizer.momentum"],
    "a group deleted": ["~debug", "optimizer.lr=0.7"],
    "of Hydra's own": ["hydra.job.name=mine", "optimizer.lr=0.9"],
    "a folder of its own": ["hydra.sweep.subdir=${hydra.job.override_dirname}", "optimizer.lr=0.9"],
    "Hydra's group": ["hydra/job_logging=disabled"],
}


@pytest.fixture(scope="module")
def hydra():
    """(loader, the config of a command line): as the launcher gets them."""
    GlobalHydra.instance().clear()
    setup_globals()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        composed = loader.load_configuration("config", [*TYPED], RunMode.MULTIRUN)
        assert composed.hydra.sweep.dir  # its ${now:…} is from here on the command's
        OmegaConf.set_readonly(composed, False)
        yield loader, composed


@pytest.fixture(scope="module")
def compose(hydra):
    """One for the whole table: no job may change what the next ones start from."""
    return Composer(*hydra)


def hydras_own(hydra, overrides, number):
    """What Hydra's own launcher gives a job (BasicLauncher.launch)."""
    loader, composed = hydra
    found = loader.load_sweep_config(composed, list(overrides))
    OmegaConf.set_struct(found, False)
    found.hydra.job.id = found.hydra.job.num = number
    found.hydra.runtime.output_dir = str(SWEEP / found.hydra.sweep.subdir)  # run_job
    OmegaConf.set_struct(found, True)
    return found


def everything(node):
    """All that two configs may differ in: values, interpolations, types, flags."""
    if OmegaConf.is_dict(node):
        children = [(key, everything(node._get_node(key))) for key in node]
    elif OmegaConf.is_list(node):
        children = [everything(node._get_node(index)) for index in range(len(node))]
    else:
        children = node._value()
    metadata = node._metadata
    return type(node), metadata.ref_type, metadata.object_type, metadata.optional, metadata.flags, children


@pytest.mark.parametrize("overrides", JOBS.values(), ids=JOBS)
def test_a_job_is_what_hydra_composes(hydra, compose, overrides):
    found, expected = compose(overrides, 3, SWEEP), hydras_own(hydra, overrides, 3)
    assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
    assert everything(found) == everything(expected)
    assert OmegaConf.to_yaml(found.hydra.job, resolve=True) == OmegaConf.to_yaml(
        expected.hydra.job, resolve=True
    )
    assert (found.hydra.job.num, found.hydra.job.id) == (3, "3")
    assert found.hydra.overrides.task == [each for each in overrides if not each.startswith("hydra")]
    job = without_hydra(found)
    assert "hydra" in found
    assert "hydra" not in job
    assert config.to_yaml(job) == config.to_yaml(without_hydra(expected))


def test_what_no_config_has_is_refused_by_a_composed_copy_too(hydra):
    compose = Composer(*hydra)
    for overrides in (["optimizer.lrr=1"], ["optimiser.lr=1"], ["optimizer=addam"]):
        with pytest.raises(Exception) as expected:  # noqa: PT011 (Hydra's types)
            hydras_own(hydra, overrides, 0)
        with pytest.raises(type(expected.value)) as found:
            compose(overrides, 0, SWEEP)
        assert str(found.value) == str(expected.value)


def test_jobs_that_differ_in_values_alone_are_composed_once(hydra, monkeypatch):
    loader, composed = hydra
    calls, load = [], loader.load_sweep_config

    def load_sweep_config(config, overrides):
        calls.append(overrides)
        return load(config, overrides)

    monkeypatch.setattr(loader, "load_sweep_config", load_sweep_config)
    compose = Composer(loader, composed)
    jobs = [["optimizer=adam", f"seed={seed}", f"optimizer.lr={lr}"] for seed in (0, 1) for lr in (0.1, 0.2)]
    found = [compose(overrides, number, SWEEP) for number, overrides in enumerate(jobs)]
    assert calls == [["optimizer=adam"]]
    assert [(each.seed, each.optimizer.lr, each.hydra.job.num) for each in found] == [
        (0, 0.1, 0), (0, 0.2, 1), (1, 0.1, 2), (1, 0.2, 3),
    ]  # fmt: skip
    compose(["~debug"], 4, SWEEP)
    compose(["optimizer=sgd"], 5, SWEEP)
    assert calls == [["optimizer=adam"], ["~debug"], ["optimizer=sgd"]]


def test_all_jobs_have_the_command_s_time(hydra):
    _, composed = hydra
    compose = Composer(*hydra)
    times = {
        each.hydra.sweep.dir
        for each in (compose(["seed=1"], 0, SWEEP), compose(["optimizer=adam"], 1, SWEEP), composed)
    }
    assert len(times) == 1
    assert copy.deepcopy(composed).hydra.sweep.dir in times


def test_a_job_s_name_has_its_overrides_without_excluded_ones(hydra):
    found = Composer(*hydra)(["seed=1", "optimizer=adam", "optimizer.lr=0.5"], 0, SWEEP)
    assert found.hydra.job.override_dirname == "optimizer.lr=0.5,optimizer=adam"
