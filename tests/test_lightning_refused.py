"""Which models are modules, and which of their methods are refused by name."""

import pytest

from runner import lightning
from runner.errors import ConfigError
from runner.lightning.module import UNCALLED, arity
from tests.lightning_modules import Digits, Duck, LightningModule, Net, nothing, with_methods
from tests.test_layers import MODULES, imports

OWN = "model=tests.lightning_modules.Mine: "


@pytest.mark.parametrize(
    ("step", "seen"),
    [
        (lambda batch: batch, 1),
        (lambda batch, index=0: batch, 2),
        (lambda *everything: everything, 2),
        (lambda batch, index, dataloader_idx: batch, 3),
        (lambda batch, index, dataloader_idx=0: batch, 2),
    ],
)
def test_a_step_is_called_with_what_it_takes(step, seen):
    assert arity(step) == seen


def test_a_model_or_its_class_is_a_module_by_its_methods():
    assert [lightning.is_module(model) for model in (Digits, Digits(), Duck, Duck())] == [True] * 4
    assert not lightning.is_module(Net)
    assert not lightning.is_module(Net())


def test_runner_never_imports_lightning():
    assert {name.split(".")[0] for path in MODULES for name in imports(path)} & {
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
    } == set()


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            lambda: with_methods(on_train_epoch_end=nothing, on_fit_start=nothing, train_dataloader=nothing),
            OWN
            + "train_dataloader would not run (data come from the config group dataset: delete it and type "
            "dataset=…); on_fit_start, on_train_epoch_end would not run (hooks are not called: do it in __init__, "
            "training_step or validation_step)",
        ),
        (
            lambda: with_methods(base=Duck, optimizer_step=nothing),
            OWN
            + "optimizer_step would not run (runner takes the step: backward, average over the ranks, clip, step, "
            "schedule)",
        ),
        (
            lambda: with_methods(automatic_optimization=False),
            OWN
            + "automatic_optimization = False: runner calls backward and the optimizer itself; return the loss from "
            "training_step instead",
        ),
        (
            lambda: with_methods(LightningModule, configure_optimizers=lambda self: None),
            OWN + "defines no training_step",
        ),
        (
            lambda: with_methods(LightningModule, training_step=nothing),
            OWN + "defines no configure_optimizers",
        ),
    ],
)
def test_what_would_silently_not_run_is_refused_by_name(model, line):
    with pytest.raises(ConfigError) as raised:
        lightning.check(model())
    assert str(raised.value) == line


@pytest.mark.parametrize("name", sorted(UNCALLED))
def test_every_uncalled_method_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name} would not run"):
        lightning.check(with_methods(**{name: nothing}))


def test_a_method_set_on_the_instance_is_refused_too():
    model = Digits()
    model.val_dataloader = nothing
    with pytest.raises(ConfigError, match="val_dataloader would not run"):
        lightning.check(model)


def test_every_hook_of_the_installed_lightning_is_known():
    hooks = {
        name for name in dir(LightningModule) if name.startswith(("on_", "configure_")) and name != "on_gpu"
    }
    tested = {name for name in hooks if name.startswith(("on_test", "on_predict"))}  # no part of a fit
    called = {"configure_optimizers", "on_save_checkpoint", "on_load_checkpoint"}
    assert hooks - tested - called == {name for name in UNCALLED if name in hooks}


def test_what_a_fit_does_not_call_is_accepted():
    lightning.check(
        with_methods(test_step=nothing, predict_step=nothing, on_test_end=nothing, test_dataloader=nothing)
    )
    lightning.check(Digits())
    lightning.check(Duck())


@pytest.mark.parametrize(
    "step", [lambda self, dataloader_iter: None, lambda self: None, lambda self, batch, *, mode: None]
)
def test_a_step_that_cannot_be_called_with_a_batch_is_refused(step):
    with pytest.raises(ConfigError, match="a step is called with \\(batch, batch_idx\\)"):
        lightning.check(with_methods(validation_step=step))
