"""The LR of every single step, against closed forms."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from torch.optim import lr_scheduler

from runner import build
from runner.errors import ConfigError
from runner.schedule import Schedule
from runner.schema import Interval
from tests.fakes import make_experiment, plan_for

FOLDER = Path(__file__).resolve().parents[1] / "conf/scheduler"
PEAK = 0.4
LOSSES = [9.0, 8.0, 8.5, 8.4, 7.0, 7.5, 7.1, 7.2, 6.0, 6.5, 6.4, 6.3, 6.2, 6.1, 5.0, 5.0]  # after each step


def make(
    scheduler=None, interval=Interval.step, warmup=0, start=0.25, per_epoch=10, lr=PEAK, second=None, **more
):
    """(optimizer, schedule) as build_learner builds them; with `second`, the LR of a second parameter group."""
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in (lr, second) if rate]
    optimizer = torch.optim.SGD(groups)
    scheduler = scheduler or (lambda o: lr_scheduler.ConstantLR(o, factor=1.0, total_iters=0))
    return optimizer, Schedule(optimizer, scheduler(optimizer), interval, warmup, start, per_epoch, **more)


def lrs(optimizer, schedule, steps, first=0, losses=()):
    """The LR that each step is taken with; `losses` are measured after each, counted from step `first`."""
    taken = []
    for step in range(first, first + steps):
        taken.append(schedule.lr)
        optimizer.step()
        schedule.advance()
        if losses:
            schedule.measured(losses[step])
    return taken


def cosine(length, eta_min=0.0):
    return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=length, eta_min=eta_min)


def one_cycle(length):
    return lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in optimizer.param_groups], length, cycle_momentum=False
    )


KINDS = {
    "constant": None,
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 3),
    "multistep": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 5, 9]),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "polynomial": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 12, power=2.0),
    "cosine": cosine(12),
    "one_cycle": one_cycle(12),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5),
}


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


@pytest.mark.parametrize("interval", list(Interval))
@pytest.mark.parametrize("kind", KINDS)
def test_parameter_groups_keep_the_ratio_of_their_lrs(kind, interval):
    optimizer, schedule = make(KINDS[kind], interval, warmup=4, per_epoch=3, second=PEAK / 8)
    seen = set()
    for step in range(15):
        first, second = (group["lr"] for group in optimizer.param_groups)
        assert first == pytest.approx(8 * second, rel=1e-12)
        seen.add(first)
        lrs(optimizer, schedule, 1, step, LOSSES)
    assert len(seen) >= 5  # four of the warm-up at least


def test_step_counts_from_the_start_of_the_training():
    every_two = lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5)  # noqa: E731
    expected = [
        0.1,
        0.2,
        0.3,
        0.4,
        0.2,
        0.2,
        0.2,
        0.2,
        0.1,
        0.1,
    ]  # epochs of two steps, a warm-up of three steps
    assert lrs(*make(every_two, Interval.epoch, warmup=3, per_epoch=2), 10) == close(expected)


def test_milestones_count_from_the_start_of_the_training():
    """Goyal et al. 2017: a tenth at epochs 3, 6 and 8, with a warm-up of one epoch inside the first three."""
    tenths = lambda o: lr_scheduler.MultiStepLR(o, [3, 6, 8])  # noqa: E731
    epochs = [PEAK] * 3 + [PEAK / 10] * 3 + [PEAK / 100] * 2 + [PEAK / 1000]
    expected = [0.1, 0.25, *[lr for lr in epochs for _ in range(2)][2:]]
    assert lrs(*make(tenths, Interval.epoch, warmup=2, per_epoch=2), 18) == close(expected)


def test_a_milestone_inside_the_warm_up_lowers_where_it_leads():
    tenth = lambda o: lr_scheduler.MultiStepLR(o, [2])  # noqa: E731
    expected = [0.1, 0.175, 0.025, 0.0325, 0.04, 0.04]  # 0.4 or 0.04 × (¼ + ¾ × step / 4)
    assert lrs(*make(tenth, warmup=4), 6) == close(expected)


def test_polynomial_counts_from_the_end_of_the_warm_up():
    square = lambda o: lr_scheduler.PolynomialLR(o, 4, power=2.0)  # noqa: E731
    expected = [0.1, 0.25, *(PEAK * (1 - step / 4) ** 2 for step in range(5))]
    assert lrs(*make(square, warmup=2), 7) == close(expected)


def test_one_cycle_rises_and_falls_after_the_warm_up():
    def between(start, end, part):
        return end + (start - end) * (1 + math.cos(math.pi * part)) / 2

    low, lowest = PEAK / 25, PEAK / 25e4
    rise = [between(low, PEAK, step / 2) for step in range(3)]  # 0.3 × 10 − 1 = 2 steps up
    fall = [between(PEAK, lowest, step / 7) for step in range(1, 8)]
    assert lrs(*make(one_cycle(10)), 10) == close(rise + fall)
    assert lrs(*make(one_cycle(10), warmup=2, start=0.5), 12) == close([low / 2, low * 3 / 4, *rise, *fall])


def test_plateau_takes_the_measured_metric_and_nothing_else():
    halved = KINDS["plateau"]  # after two measurements in a row without a better one
    assert lrs(*make(halved), 16) == [PEAK] * 16
    measured = lrs(*make(halved), 16, losses=LOSSES)
    assert measured == [0.4] * 4 + [0.2] * 3 + [0.1] * 4 + [0.05] * 2 + [0.025] * 3
    higher = lambda o: lr_scheduler.ReduceLROnPlateau(o, mode="max", patience=1, factor=0.5)  # noqa: E731
    assert lrs(*make(higher), 16, losses=[-loss for loss in LOSSES]) == measured


def test_plateau_ignores_what_is_measured_during_the_warm_up():
    worse = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    # The best is that after step 4, the first at the full LR; steps 5 and 6 are worse.
    assert lrs(*make(KINDS["plateau"], warmup=4), 7, losses=worse) == close(
        [0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.2]
    )


def test_what_is_measured_does_not_concern_other_schedulers():
    assert lrs(*make(cosine(12)), 12, losses=LOSSES) == lrs(*make(cosine(12)), 12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("interval", list(Interval))
@pytest.mark.parametrize("stop", [0, 2, 4, 5, 9])
def test_a_restored_schedule_goes_on_as_if_it_had_not_stopped(stop, interval, kind, tmp_path):
    def fresh():
        return make(KINDS[kind], interval, warmup=4, per_epoch=3)

    whole = lrs(*fresh(), 16, losses=LOSSES)
    optimizer, schedule = fresh()
    before = lrs(optimizer, schedule, stop, losses=LOSSES)
    torch.save([optimizer.state_dict(), schedule.state_dict()], tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt", weights_only=True)  # plain values
    resumed_optimizer, resumed = fresh()
    resumed_optimizer.load_state_dict(saved[0])
    resumed.resume(saved[1], stop)
    assert before + lrs(resumed_optimizer, resumed, 16 - stop, stop, LOSSES) == whole


def test_a_cycle_shorter_than_the_training_is_refused():
    make(one_cycle(10), warmup=2, total_steps=12)
    with pytest.raises(
        ConfigError,
        match=r"^scheduler.total_steps=10: the run steps the scheduler 11 times after the "
        r"warm-up; type scheduler.total_steps=11$",
    ):
        make(one_cycle(10), warmup=2, total_steps=13)
    make(one_cycle(4), Interval.epoch, per_epoch=3, warmup=3, total_steps=15)
    with pytest.raises(ConfigError, match=r"^scheduler.total_steps=3: the run steps the scheduler 4 times"):
        make(one_cycle(3), Interval.epoch, per_epoch=3, warmup=3, total_steps=15)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("constant", 0.4, 0.4),
        ("warmup", 0.1, 0.4),
        ("step", 0.4, 0.4),  # 20 epochs are fewer than step_size
        ("multistep", 0.4, 0.4),
        ("cosine", 0.4, half_cosine(199, 200)),
        ("polynomial", 0.4, 0.4 / 200),
        ("one_cycle", 0.4 / 25, 0.4 / 25e4),
        ("plateau", 0.4, 0.4),
    ],
)
def test_every_file_of_conf_gives_a_whole_run_its_lrs(name, first, last):
    plan = plan_for(4, 8, rows=320, epochs=20)  # 200 steps
    node = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    interval, epochs = Interval(node.pop("interval", "step")), node.pop("warmup_epochs") or 0
    node.pop("warmup_start", None)
    object.__setattr__(plan.learning_rate, "warmup_epochs", epochs)
    settings = make_experiment({"scheduler.interval": interval, "scheduler.warmup_epochs": epochs}).scheduler

    def scheduler(optimizer):
        peaks = [group["lr"] for group in optimizer.param_groups]
        facts = {**plan.for_scheduler(settings), "max_lr": peaks, "mode": "min"}
        return build.build(node, optimizer, facts=facts)

    made = make(scheduler, interval, plan.warmup_steps, per_epoch=10, total_steps=plan.total_steps)
    taken = lrs(*made, plan.total_steps)
    assert (taken[0], taken[-1]) == close((first, last))
    assert max(taken) == pytest.approx(0.4)


def test_every_file_of_conf_is_tested():
    cases = test_every_file_of_conf_gives_a_whole_run_its_lrs.pytestmark[0].args[1]
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {name for name, *_ in cases}


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
