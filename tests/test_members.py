"""What a population may search over, and with what its members begin."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from runner.errors import ConfigError
from runner.options import Bounds
from runner.schema import Ingest
from runner.sweep.members import at, first_options, open_population
from runner.sweep.space import space
from runner.sweep_schema import Method
from tests.fakes import make_experiment

LRS = "optimizer.lr=0.1,0.001,0.01"


def parsed(sweeps):
    return OverridesParser.create().parse_overrides(list(sweeps))


def opened(*sweeps, **settings):
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    experiment = make_experiment({"search.method": Method.pbt, "search.perturb_every_epochs": 1, **changed})
    return open_population(experiment, parsed(sweeps))


def test_the_members_are_jobs_with_their_first_options():
    members = opened("seed=3", LRS, "optimizer.momentum=interval(0.5,0.9)", "model=mlp", search__population=3)
    assert members.total == 3
    assert sorted(each["optimizer.lr"] for each in members.options) == [0.001, 0.01, 0.1]  # each once
    for number, options in enumerate(members.options):
        trial = members.next()
        assert trial.number == number
        assert trial.overrides == (
            "seed=3",
            f"optimizer.lr={options['optimizer.lr']!r}",
            f"optimizer.momentum={options['optimizer.momentum']!r}",
            "model=mlp",
        )
    assert members.next() is None
    assert members.space == {"optimizer.lr": [0.001, 0.01, 0.1], "optimizer.momentum": Bounds(0.5, 0.9)}


def test_first_options_are_spread_over_each_axis_and_depend_on_the_seed_alone():
    found = space(parsed(["optimizer.lr=tag(log,interval(0.0001,1))", "optimizer.momentum=0,0.9"]))
    drawn = first_options(found, 4, 0)
    decades = sorted(each["optimizer.lr"] for each in drawn)
    assert all(10 ** (-4 + part) <= lr < 10 ** (-3 + part) for part, lr in enumerate(decades))
    assert sorted(each["optimizer.momentum"] for each in drawn) == [0, 0, 0.9, 0.9]
    assert first_options(found, 4, 0) == drawn != first_options(found, 4, 1)


@pytest.mark.parametrize(
    ("values", "place", "found"),
    [
        ([1, 2, 3], 0.0, 1),
        ([1, 2, 3], 0.99, 3),
        (Bounds(1.0, 3.0), 0.25, 1.5),
        (Bounds(0.01, 1.0, True), 0.5, 0.1),
        (Bounds(1, 3), 0.99, 3),
        (Bounds(1, 3), 0.0, 1),
    ],
)
def test_a_place_has_a_value(values, place, found):
    assert at(values, place) == pytest.approx(found)


@pytest.mark.parametrize(
    ("sweeps", "settings", "said"),
    [
        (("seed=1",), {}, "search.method=pbt: no key has several values to search over; type 'optimizer.lr=tag(log,interval(0.001,1))'"),
        (("seed=1,2",), {}, "seed=1,2: pbt changes what does not end a training: numbers of the optimizer (optimizer.lr, …), trainer.clip_norm, trainer.clip_value, loss.label_smoothing; type search=tpe"),
        (("trainer.batch_size=int(interval(8,64))",), {}, "trainer.batch_size=interval(8,64): pbt changes"),
        (("optimizer.nesterov=true,false",), {}, "optimizer.nesterov=True,False: pbt changes numbers; type search=tpe"),
        (("trainer.clip_norm=null,1",), {}, "trainer.clip_norm=null,1: pbt changes numbers; type search=tpe"),
        (("optimizer.lr=0.1,inf",), {}, "optimizer.lr=0.1,inf: pbt changes numbers; type search=tpe"),
        (("optimizer.lr=interval(0,1)",), {}, "optimizer.lr=0.0: must be a finite number above 0; type optimizer.lr=0.1"),
        (("loss.label_smoothing=interval(0,1)",), {"dataset__task": None}, "loss.label_smoothing=1.0: must be from 0 to below 1; type loss.label_smoothing=0.1"),
        ((LRS,), {"search__population": 65}, "search.population=65: 64 at most; type search.population=64"),
        ((LRS,), {"search__trials": 9}, "search.trials=9: all members of a population are there from the start; type search.population=9"),
        ((LRS,), {"sweep__max_concurrent": 1}, "sweep.max_concurrent=1: search=pbt: Tune trains as many members at a time as there are CPUs for; type scaling.resources_per_worker.CPU=…"),
        ((LRS,), {"checkpoint__enabled": False}, "checkpoint.enabled=false: search=pbt: a member goes on from a checkpoint; type checkpoint.enabled=true"),
        ((LRS,), {"dataset__ingest": Ingest.ray_data}, "dataset.ingest=ray_data: search=pbt: is not there yet; type dataset.ingest=tensors"),
        ((LRS,), {"trainer__validate_every_epochs": 2}, "trainer.validate_every_epochs=2: search=pbt: members are compared by a validation after epoch 1, 2, …; type trainer.validate_every_epochs=1"),
        ((LRS,), {"trainer__validate_every_steps": 7}, "trainer.validate_every_steps=7: search=pbt: members"),
        ((LRS,), {"search__perturb_every_epochs": 20}, "search.perturb_every_epochs=20: the training ends after 20 epochs, so that nothing would be taken over; type search.perturb_every_epochs=1"),
    ],
)  # fmt: skip
def test_what_a_population_cannot_do_is_refused_in_a_line(sweeps, settings, said):
    with pytest.raises(ConfigError) as refused:
        opened(*sweeps, **settings)
    assert str(refused.value).startswith(said)


def test_a_lightning_module_has_an_optimizer_of_its_own():
    target = {"_target_": "tests.lightning_modules.Digits"}
    with pytest.raises(ConfigError, match=r"optimizer\.lr=…: a LightningModule makes its own optimizer"):
        opened(LRS, model__target=target)
    assert opened("trainer.clip_norm=1,2", model__target=target).total == 4
