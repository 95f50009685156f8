"""Whole trainings with AdaScale: how long they are, which LR each step has, and how they go on."""

import dataclasses
import io
import json
import math
from itertools import pairwise

import pytest
from rich.console import Console

from runner import going_on
from runner.errors import ConfigError
from runner.plan import Position
from runner.report.console import Screen
from runner.saving import resume
from runner.schema import Precision
from tests.fakes import make_experiment, plan_of, without_times
from tests.goings_on import SEED, Case, commit
from tests.lockstep import in_lockstep

ADASCALE = {"_target_": "runner.lr_scaling.adascale"}
COSINE = {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": None}
ROWS, EPOCHS = 48, 3


def case_of(workers=1, accumulation=4, rows=ROWS, **settings):
    """S = 4 micro-batches of 3 rows: four steps an epoch, and 16 of the base batch."""
    sizes = {
        "trainer.epochs": EPOCHS,
        "trainer.batch_size": 3,
        "trainer.accumulation_steps": accumulation,
        "trainer.precision": Precision.float64,
        "lr_scaling.target": ADASCALE,
        "optimizer.lr": 0.02,
        "checkpoint.every_steps": 1,
    }
    return Case({**sizes, **{k.replace("__", "."): v for k, v in settings.items()}}, workers, rows)


def trained(case):
    """(rank 0's TrainState, [(step, metrics)] of its history, its snapshots); the ranks' ends are equal."""
    ends, snapshots = case.trained()
    last = snapshots[-1].state
    assert all(each["state"] == ends[0]["state"] for each in ends)
    history = [json.loads(line) for line in last["history"].numpy().tobytes().split(b"\n")]
    return last["train_state"], [(each["step"], each["metrics"]) for each in history], snapshots


def lr_of_every_step(history, steps):
    """From the points of the metric `lr`: it holds until the next one."""
    points = {step: metrics["lr"] for step, metrics in history}
    found = []
    for number in range(1, steps + 1):
        found.append(points.get(number, found[-1] if found else None))
    return found


@pytest.fixture(scope="module")
def cosine():
    """A training with a warm-up of 4 base steps, then a cosine."""
    case = case_of(scheduler__target=COSINE, scheduler__warmup_steps=4, scheduler__warmup_start=0.5)
    return case, *trained(case)


def test_a_training_ends_after_its_scale_invariant_steps(cosine):
    case, state, history, snapshots = cosine
    total = EPOCHS * 16
    assert (case.plan.total_steps, case.plan.steps_per_epoch) == (total, 4)
    progress = [
        taken.state["train_state"]["step"] + taken.state["train_state"]["gained"] for taken in snapshots
    ]
    assert progress[-2] < total <= progress[-1] <= total + 4
    assert all(1 <= after - before <= 4 for before, after in pairwise([0, *progress]))
    assert total / 4 <= state["step"] == len(snapshots) < total
    assert (state["ended"], state["stopped"]) == (True, False)
    # The last step is validated and kept, though it lies within an epoch.
    assert snapshots[-1].name == f"step-{state['step']:08d}"
    assert history[-1][0] == state["step"]
    assert history[-1][1]["epoch"] == state["epoch"] + state["rows"] / ROWS
    assert math.isfinite(history[-1][1]["val/loss"])


def test_a_cycle_that_cannot_go_on_ends_with_the_training():
    """The last step may be worth more than is left; OneCycleLR raises where it is stepped once too often."""
    cycle = {"_target_": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": None, "total_steps": None}
    state, _, snapshots = trained(case_of(scheduler__target=cycle, trainer__max_steps=17))
    assert state["step"] + state["gained"] > 17.5
    assert snapshots[-1].state["schedule"]["step"] == 17


def test_the_lr_of_every_step_is_the_gain_times_the_schedule_s_after_so_many_base_steps(cosine):
    _, state, history, snapshots = cosine

    def scheduled(steps):  # 0.02, warm-up from a half of it, a cosine over the other 44
        warm = min(1.0, 0.5 + 0.5 * steps / 4)
        return 0.02 * warm * (1 + math.cos(math.pi * max(0, steps - 4) / 44)) / 2

    found = lr_of_every_step(history, state["step"])
    states = [taken.state["train_state"] for taken in snapshots]
    assert found == [each["lr"] for each in states]
    before = 0.0
    for lr, each in zip(found, states, strict=True):
        progress = each["step"] + each["gained"]
        assert lr == pytest.approx((progress - before) * scheduled(math.floor(before + 1e-9)), rel=1e-9)
        before = progress
    assert len(set(found)) > state["step"] / 2


def test_the_mean_gain_and_the_base_steps_so_far_are_reported(cosine):
    _, _, history, snapshots = cosine
    reports = [(step, metrics) for step, metrics in history if "epoch" in metrics]
    gained = {taken.state["train_state"]["step"]: taken.state["train_state"]["gained"] for taken in snapshots}
    before_step, before = 0, 0.0
    for step, metrics in reports:
        progress = step + gained[step]
        assert metrics["adascale/steps"] == progress
        assert metrics["adascale/gain"] == pytest.approx((progress - before) / (step - before_step), rel=1e-9)
        before_step, before = step, progress


def test_any_layout_of_the_same_micro_batches_trains_the_same():
    layouts = [
        case_of(workers, 4 // workers, rows=46) for workers in (1, 2, 4)
    ]  # the last batch is of 10 rows
    expected, history, _ = trained(layouts[0])
    for case in layouts[1:]:
        state, found, _ = trained(case)
        assert {**state, **expected} == pytest.approx({**expected, **state}, rel=1e-9)
        for (step, metrics), (wanted_step, wanted) in zip(found, history, strict=True):
            assert step == wanted_step
            assert without_times(metrics) == pytest.approx(without_times(wanted), rel=1e-9)


@pytest.mark.parametrize("workers", [1, 4])
def test_on_other_workers_the_estimates_the_length_and_the_schedule_go_on(workers, tmp_path):
    settings = {"scheduler__target": COSINE}
    _, _, snapshots = trained(case_of(2, 2, **settings))  # S = 4; then 2 or 8
    taken = snapshots[4]
    position = Position(taken.facts["epoch"], taken.facts["step"], taken.facts["rows"])
    case = dataclasses.replace(case_of(workers, 2, **settings), position=position)
    assert (case.plan.total_steps, case.plan.schedule_offset) == (EPOCHS * 16, 0)
    root = commit(tmp_path, taken)

    def rank(communicator):
        training, ingest = case.begin(communicator)
        resume(training, root, communicator, SEED)
        begun = training.learner.state_dict()
        assert begun["adascale"] == taken.state["adascale"]
        assert begun["schedule"] == taken.state["schedule"]
        steps = training.state.step
        last = case.go(training, ingest, communicator)
        return training.state, steps, last

    states = in_lockstep(workers, rank)
    state, steps, snapshots = states[0]
    assert all(vars(each) == vars(state) for each, _, _ in states)
    before = [taken.facts["progress"], *(each.facts["progress"] for each in snapshots)]
    assert all(1 <= later - one <= 2 * workers for one, later in pairwise(before))
    assert before[-2] < EPOCHS * 16 <= before[-1] == state.progress
    assert state.step == steps + len(snapshots)


def test_steps_that_are_short_of_the_end_go_on_and_a_finished_run_says_what_makes_it_longer():
    experiment, data = case_of(2, 2).experiment, case_of().data
    plan = case_of(2, 2).plan
    usual = {"epoch": 3, "step": 13, "rows": 0, "stale": 0, "num_workers": 2, "global_batch_size": 12}
    manifest = {**usual, "data": data.identity(), "progress": 47.5}
    assert going_on.check(manifest, experiment, plan, data, True) is None
    with pytest.raises(ConfigError) as refused:
        going_on.check({**manifest, "progress": 48.0}, experiment, plan, data, True)
    assert (
        str(refused.value)
        == "trainer.epochs=3: the run has taken its 13 steps, 3 epochs; type trainer.epochs=4"
    )
    change = going_on.check({**manifest, "num_workers": 1}, experiment, plan, data, False)
    assert "global batch 12 instead of 12, 48 scale-invariant steps in all; lr 0.02" in change


# The plan


def test_the_plan_of_adascale_counts_in_the_base_batch():
    settings = {"lr_scaling.target": ADASCALE, "scaling.num_workers": 4, "scheduler.warmup_epochs": 1.5}
    plan = plan_of({**settings, "trainer.epochs": 3})  # 1000 rows, batch 32: 32 base steps an epoch, 8 steps
    assert (plan.steps_per_epoch, plan.schedule_steps_per_epoch, plan.total_steps) == (8, 32, 96)
    assert plan.warmup_steps == 48
    assert plan.lines()[1:] == [
        (
            "steps between 24 and 96: 96 scale-invariant steps = 3 epochs × 32 of batch 32; 1000 training rows, "
            "200 validation rows"
        ),
        "resources 4 workers × 0.5 CPU",
        (
            "lr 0.1 (base, batch 32) × 1 to 4 (adascale: gain measured each step) = 0.1 to 0.4, "
            "warm-up 1.5 epochs from 0.01"
        ),
    ]
    scheduler = make_experiment({"scheduler.warmup_epochs": 1.5}).scheduler
    assert plan.for_scheduler(scheduler)["T_max"] == 48
    assert plan_of({**settings, "trainer.max_steps": 50}).total_steps == 50
    dropped = plan_of({**settings, "dataset.drop_last": True, "trainer.epochs": 3})
    assert (dropped.dropped_rows, dropped.schedule_steps_per_epoch) == (1000 - 7 * 128, 28)


def test_the_screen_shows_the_base_steps_of_a_training_that_has_no_fixed_number_of_epochs():
    plan = plan_of({"lr_scaling.target": ADASCALE, "scaling.num_workers": 4, "trainer.epochs": 3})
    output = io.StringIO()
    screen = Screen(Console(file=output, highlight=False, soft_wrap=True))
    screen.measured({"epoch": 1.0, "train/loss": 0.5, "adascale/gain": 2.25, "adascale/steps": 18.0}, plan)
    assert (
        output.getvalue() == "epoch 1  step 18.0/96 (scale-invariant)  train/loss 0.5  adascale/gain 2.25\n"
    )
