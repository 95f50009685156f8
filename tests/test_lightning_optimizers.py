"""What configure_optimizers may return, and its LR and scheduler under scaling and Horovod."""

import io

import pytest
import torch
from torch.optim import SGD, lr_scheduler

from runner import lightning
from runner.errors import ConfigError
from tests.lightning_modules import FORMS, LR, Digits, Duck, Plateau, with_methods


@pytest.mark.parametrize("form", FORMS)
def test_the_base_lr_is_the_module_s_own_before_any_scaling(form):
    assert lightning.base_lr(Digits(form)) == (LR / 10 if form == "a list" else LR)


def test_frozen_parameters_are_left_to_no_optimizer():
    model = Duck()
    model.layers[1].requires_grad_(False)
    optimizer, _ = lightning.configure(model, 1.0)
    assert [parameter.shape for parameter in optimizer.param_groups[0]["params"]] == [(10, 16), (10,)]


class Picky(SGD):
    """An optimizer that Horovod could not construct again from its groups."""

    def __init__(self, params, lr, *, scale, rounds=1):
        super().__init__(params, lr)
        self.defaults["scale"] = self.scale = scale
        self.rounds = rounds


def test_the_optimizer_s_class_remembers_its_arguments():
    class Demanding(Duck):
        def configure_optimizers(self):
            return Picky(self.parameters(), LR, scale=3, rounds=5)

    optimizer, _ = lightning.configure(Demanding(), 2.0)
    again = type("Picky", (type(optimizer),), {})(optimizer.param_groups)  # as Horovod does
    assert (again.scale, again.rounds, again.param_groups[0]["lr"]) == (3, 5, LR * 2)
    assert isinstance(again, Picky)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("an optimizer", "a list")])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_restored_schedule_goes_on_bit_for_bit(form, at):
    def scheduled():
        optimizer, schedule_with = lightning.configure(Digits(form), 3.0)
        return optimizer, schedule_with(optimizer)[0]

    def options(optimizer):
        return [(group["lr"], group["momentum"]) for group in optimizer.param_groups]

    optimizer, scheduler = scheduled()
    for _ in range(at):
        scheduler.step()
    restored_optimizer, restored = scheduled()
    checkpoint = io.BytesIO()
    torch.save(scheduler.state_dict(), checkpoint)
    checkpoint.seek(0)
    restored.load_state_dict(torch.load(checkpoint, weights_only=True))
    for _ in range(4):
        assert options(restored_optimizer) == options(optimizer)
        assert restored.get_last_lr() == scheduler.get_last_lr()
        scheduler.step()
        restored.step()


def sgd(module):
    return SGD(module.parameters(), LR)


def plateau(module):
    return lr_scheduler.ReduceLROnPlateau(sgd(module))


CHOICES = {
    "2 optimizers: one is needed; give parts of the model groups of their own": lambda m: [sgd(m), sgd(m)],
    "a NoneType: a torch optimizer that steps without a closure is needed": lambda m: None,
    "a LBFGS: a torch optimizer that steps without a closure is needed": lambda m: torch.optim.LBFGS(
        m.parameters()
    ),
    "2 schedulers: one is needed; join them with SequentialLR or ChainedScheduler": lambda m: (
        [sgd(m)],
        [lr_scheduler.StepLR(sgd(m), 1), lr_scheduler.StepLR(sgd(m), 1)],
    ),
    "frequency=2 of the scheduler: 1 is needed": lambda m: {
        "optimizer": sgd(m),
        "lr_scheduler": {"scheduler": lr_scheduler.StepLR(sgd(m), 1), "frequency": 2},
    },
    "interval='batch' of the scheduler: 'epoch' or 'step' is needed": lambda m: {
        "optimizer": sgd(m),
        "lr_scheduler": {"scheduler": lr_scheduler.StepLR(sgd(m), 1), "interval": "batch"},
    },
    "lr_scheduler has 'intervall': it takes scheduler, interval, frequency, monitor, name, strict, reduce_on_plateau; "
    "type 'interval'": lambda m: {"optimizer": sgd(m), "lr_scheduler": {"scheduler": 1, "intervall": "step"}},
    "lr_scheduler is a str: a torch scheduler is needed": lambda m: {
        "optimizer": sgd(m),
        "lr_scheduler": "cosine",
    },
    'ReduceLROnPlateau without a monitor; type "monitor": "val_loss" beside it': lambda m: (
        [sgd(m)],
        [plateau(m)],
    ),
    "interval='step' of ReduceLROnPlateau: it is stepped after each validation; leave it out": lambda m: (
        [sgd(m)],
        [{"scheduler": plateau(m), "interval": "step", "monitor": "val_loss"}],
    ),
    "reduce_on_plateau of a StepLR: ReduceLROnPlateau itself is needed": lambda m: (
        [sgd(m)],
        [{"scheduler": lr_scheduler.StepLR(sgd(m), 1), "reduce_on_plateau": True}],
    ),
}


@pytest.mark.parametrize("line", CHOICES)
def test_what_configure_optimizers_may_not_return(line):
    with pytest.raises(ConfigError) as raised:
        lightning.check(with_methods(configure_optimizers=CHOICES[line]))
    assert str(raised.value) == f"configure_optimizers: {line}"


def test_an_error_in_configure_optimizers_is_one_line():
    def of_the_trainer(module):
        return SGD(module.parameters(), LR / module.trainer.estimated_stepping_batches)

    with pytest.raises(ConfigError) as raised:
        lightning.check(with_methods(configure_optimizers=of_the_trainer))
    assert str(raised.value) == "configure_optimizers: RuntimeError: Mine is not attached to a `Trainer`."


def test_a_plateau_and_a_checkpoint_follow_one_metric():
    lightning.check(Plateau(), "val/loss")
    lightning.check(Digits(), "val/acc")
    with pytest.raises(ConfigError) as raised:
        lightning.check(Plateau(), "val/acc")
    assert str(raised.value) == (
        "checkpoint.monitor=val/acc: the module's ReduceLROnPlateau follows val/loss, and there is one monitored metric; "
        "type checkpoint.monitor=val/loss"
    )
