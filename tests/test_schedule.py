"""The LR of every single step, against closed forms."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from runner.schedule import Schedule
from runner.schema import Interval
from tests.fakes import make_experiment, plan_for

PEAK = 0.4


def make(scheduler=None, interval=Interval.step, warmup=0, start=0.25, per_epoch=10, lr=PEAK):
    """(optimizer, schedule) as worker.build_learner builds them."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = scheduler or (lambda o: lr_scheduler.ConstantLR(o, factor=1.0, total_iters=0))
    return optimizer, Schedule(optimizer, scheduler(optimizer), interval, warmup, start, per_epoch)


def lrs(optimizer, schedule, steps):
    """The LR that each step is taken with."""
    taken = []
    for _ in range(steps):
        taken.append(schedule.lr)
        optimizer.step()
        schedule.advance()
    return taken


def cosine(length, eta_min=0.0):
    return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=length, eta_min=eta_min)


def half_cosine(step, length, eta_min=0.0):
    return eta_min + (PEAK - eta_min) * (1 + math.cos(math.pi * step / length)) / 2


def close(values):
    return pytest.approx(values, rel=1e-12, abs=1e-15)


def test_constant_without_warm_up():
    assert lrs(*make(), 5) == [PEAK] * 5


def test_warm_up_is_linear_from_its_start_to_the_peak_and_then_constant():
    expected = [0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.4]  # 0.4 × (¼ + ¾ × step / 4)
    assert lrs(*make(warmup=4), 7) == close(expected)


def test_cosine_counts_from_the_end_of_the_warm_up():
    expected = [0.1, 0.175, 0.25, 0.325] + [half_cosine(step, 8, 0.01) for step in range(9)]
    assert lrs(*make(cosine(8, 0.01), warmup=4), 13) == close(expected)
    assert expected[4] == PEAK
    assert expected[12] == pytest.approx(0.01)


def test_cosine_without_warm_up_is_torch_s_own():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler = cosine(10)(optimizer)
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert lrs(*make(cosine(10)), 10) == expected


def test_by_epoch_the_lr_changes_only_between_epochs():
    expected = [half_cosine(epoch, 4) for epoch in range(4) for _ in range(3)]
    assert lrs(*make(cosine(4), Interval.epoch, per_epoch=3), 12) == close(expected)


def test_by_epoch_after_a_warm_up_of_one_epoch():
    warm = [PEAK * (0.25 + 0.75 * step / 3) for step in range(3)]
    expected = warm + [half_cosine(epoch, 3) for epoch in range(3) for _ in range(3)]
    assert lrs(*make(cosine(3), Interval.epoch, warmup=3, per_epoch=3), 12) == close(expected)


def test_the_scaled_lr_is_not_scaled_again_by_a_scheduler_that_starts_lower():
    halved = lambda o: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=2)  # noqa: E731
    assert lrs(*make(halved), 4) == close([0.2, 0.2, 0.4, 0.4])
    # With a warm-up the scheduler's first value is what the warm-up leads to.
    assert lrs(*make(halved, warmup=2, start=0.5), 6) == close([0.1, 0.15, 0.2, 0.2, 0.4, 0.4])


def test_each_parameter_group_keeps_its_own_peak():
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    groups = [{"params": parameters[:1], "lr": 0.4}, {"params": parameters[1:], "lr": 0.04}]
    optimizer = torch.optim.SGD(groups)
    constant = lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    schedule = Schedule(optimizer, constant, Interval.step, 2, 0.5, 10)
    seen = []
    for _ in range(3):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        schedule.advance()
    assert seen == [close([0.2, 0.02]), close([0.3, 0.03]), close([0.4, 0.04])]


@pytest.mark.parametrize("interval", list(Interval))
@pytest.mark.parametrize("stop", [0, 2, 4, 5, 9])
def test_a_restored_schedule_goes_on_as_if_it_had_not_stopped(stop, interval):
    def fresh():
        return make(cosine(12, 0.01), interval, warmup=4, per_epoch=3)

    whole = lrs(*fresh(), 16)
    optimizer, schedule = fresh()
    before = lrs(optimizer, schedule, stop)
    saved = (optimizer.state_dict(), schedule.state_dict())
    resumed_optimizer, resumed = fresh()
    resumed_optimizer.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert before + lrs(resumed_optimizer, resumed, 16 - stop) == whole


def test_state_is_plain_values_that_a_checkpoint_may_hold(tmp_path):
    optimizer, schedule = make(cosine(12), warmup=4)
    lrs(optimizer, schedule, 6)
    torch.save(schedule.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 6


@pytest.mark.parametrize("interval", list(Interval))
@pytest.mark.parametrize("warmup_epochs", [0.0, 0.5, 1.0, 1.5, 2.0, 3.25])
def test_the_plan_s_lengths_are_as_often_as_a_scheduler_is_stepped(interval, warmup_epochs):
    """So that a cosine reaches its end with the last step, and OneCycleLR is not stepped once too often."""
    plan = plan_for(4, 8, rows=320, epochs=5)  # 10 steps an epoch
    settings = {"scheduler.interval": interval, "scheduler.warmup_epochs": warmup_epochs}
    experiment = make_experiment(settings)
    object.__setattr__(plan.learning_rate, "warmup_epochs", warmup_epochs)
    calls = []

    class Counting(lr_scheduler.ConstantLR):
        def step(self, epoch=None):
            calls.append(1)
            super().step()

    optimizer, schedule = make(Counting, interval, plan.warmup_steps, per_epoch=plan.steps_per_epoch)
    calls.clear()  # torch steps once on construction
    lrs(optimizer, schedule, plan.total_steps)
    assert len(calls) == plan.for_scheduler(experiment.scheduler)["T_max"]
