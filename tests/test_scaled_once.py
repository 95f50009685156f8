"""From the config's base LR to the optimizer's groups in a training: each rule's factor is there exactly once."""

import dataclasses
import math

import pytest
import torch

from runner.errors import ConfigError
from runner.learner import build_learner
from runner.plan import DataFacts, Position, make_plan
from runner.prepare import prepare
from runner.request import Request
from runner.resources import ResourcePlan
from runner.saving import resume
from tests.composed import load
from tests.goings_on import SEED, Case, commit
from tests.lockstep import in_lockstep

DATA = DataFacts(1280, 8, (4,), 1)  # 4 workers × 32 rows: 10 steps an epoch
LENGTHS = {"none": 0, "linear": 0, "sqrt": 0, "linear_warmup": 50, "legw": 12, "adam_sde": 0, "adascale": 0}
# Rule: (the LR × what is the peak, × what the rule's own warm-up starts at)
PEAKS = {"none": 1, "linear": 4, "sqrt": 2, "linear_warmup": 4, "legw": 2, "adam_sde": 2, "adascale": 1}
STARTS = {"linear_warmup": 1, "legw": 0}


def taken_lrs(name, *overrides):
    """(base LR, the LR of each step, as the optimizer has it; for AdaScale with a gain of 1) of 4 workers."""
    optimizer = ["optimizer=adamw"] if name == "adam_sde" else []
    settings = ["model=linear", "dataset=diabetes", "scaling.num_workers=4", "trainer.epochs=20", *optimizer]
    experiment = load(f"lr_scaling={name}", *settings, *overrides)
    plan = make_plan(experiment, DATA, ResourcePlan(4, 1.0, 0.0))

    def rank(communicator):
        learner = build_learner(experiment, plan, DATA, communicator, torch.device("cpu"))
        found = []
        for _ in range(plan.total_steps):
            found.append(learner.optimizer.param_groups[0]["lr"])
            learner.optimizer.step()
            learner.schedule.advance()
        return found, plan

    return experiment.optimizer.lr, *in_lockstep(1, rank)[0]


def test_every_rule_is_tested():
    from tests.test_ledger import LINES

    assert LENGTHS.keys() == PEAKS.keys() == LINES.keys()


@pytest.mark.parametrize("name", PEAKS)
def test_the_rule_s_own_warm_up_and_a_cosine(name):
    base, found, plan = taken_lrs(name, "scheduler=cosine")
    peak, warm = base * PEAKS[name], LENGTHS[name]
    assert (plan.warmup_steps, len(found)) == (warm, 800 if name == "adascale" else 200)
    assert found[0] == pytest.approx(base * STARTS.get(name, PEAKS[name]), rel=1e-12)
    assert found[warm] == max(found) == pytest.approx(peak, rel=1e-12)
    length = len(found) - warm
    assert found[-1] == pytest.approx(peak * (1 + math.cos(math.pi * (length - 1) / length)) / 2, rel=1e-6)


@pytest.mark.parametrize("name", PEAKS)
def test_a_warm_up_of_the_scheduler_s_own_beats_the_rule_s(name):
    base, found, plan = taken_lrs(name, "scheduler=cosine", "scheduler.warmup_steps=8")
    peak = base * PEAKS[name]
    start = STARTS.get(name, 1 if PEAKS[name] > 1 else 0.1) * base
    assert plan.warmup_steps == 8
    for step in range(8):
        assert found[step] == pytest.approx(start + (peak - start) * step / 8, rel=1e-9), step
    assert found[8] == max(found) == pytest.approx(peak, rel=1e-12)


@pytest.mark.parametrize("name", PEAKS)
def test_none_for_the_warm_up_is_an_answer(name):
    base, found, _ = taken_lrs(name, "scheduler.warmup_epochs=0")
    assert found == [pytest.approx(base * PEAKS[name], rel=1e-12)] * len(found)


# Adam's betas and eps

ADAM_SDE = {"_target_": "runner.lr_scaling.adam_sde", "betas": None, "eps": None}
ADAM = {"_target_": "torch.optim.Adam", "betas": [0.9, 0.99], "eps": 1e-4}


def adam_case(workers, **settings):
    sizes = {
        "trainer.epochs": 2,
        "trainer.batch_size": 4,
        "lr_scaling.target": ADAM_SDE,
        "optimizer.target": ADAM,
        "optimizer.lr": 0.01,
        "optimizer.param_groups": [{"match": "bias", "lr": 0.02}],
        "checkpoint.every_steps": 1,
        **settings,
    }
    return Case(sizes, workers)


def options_of(learner):
    return [(group["lr"], [*group["betas"]], group["eps"]) for group in learner.optimizer.param_groups]


def adam_options(kappa):
    root, betas = math.sqrt(kappa), [1 - kappa * 0.1, 1 - kappa * 0.01]
    betas = [pytest.approx(beta, rel=1e-12) for beta in betas]
    return [(pytest.approx(lr * root, rel=1e-12), betas, pytest.approx(1e-4 / root)) for lr in (0.01, 0.02)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_adam_s_arguments_reach_every_group_of_the_optimizer_once(workers):
    case = adam_case(workers)
    found = in_lockstep(workers, lambda communicator: options_of(case.begin(communicator)[0].learner))
    assert found == [adam_options(workers)] * workers


def test_on_other_workers_the_optimizer_has_the_arguments_of_their_batch(tmp_path):
    _, snapshots = adam_case(2).trained()
    taken = snapshots[2]
    position = Position(taken.facts["epoch"], taken.facts["step"], taken.facts["rows"])
    for workers in (1, 2, 4):
        case = dataclasses.replace(adam_case(workers), position=position)
        root = commit(tmp_path / str(workers), taken)

        def rank(communicator, case=case, root=root):
            training, _ = case.begin(communicator)
            resume(training, root, communicator, SEED)
            return options_of(training.learner)

        assert in_lockstep(workers, rank) == [adam_options(workers)] * workers


def test_an_optimizer_s_own_defaults_are_what_is_scaled():
    case = adam_case(4, **{"optimizer.target": {"_target_": "torch.optim.NAdam"}})
    assert case.plan.learning_rate.line().endswith(", betas (0.9, 0.999) → (0.6, 0.996), eps 1e-08 → 5e-09")
    given = {**ADAM_SDE, "betas": [0.8, 0.9], "eps": 1.0}  # of the rule
    case = adam_case(4, **{"lr_scaling.target": given})
    assert case.plan.learning_rate.line().endswith(", betas (0.8, 0.9) → (0.2, 0.6), eps 1 → 0.5")


def test_a_lightning_module_makes_its_own_optimizer_and_is_refused(tmp_path):
    given = ["lr_scaling.betas=[0.9,0.999]", "lr_scaling.eps=1e-8"]
    for overrides in (["lr_scaling=adam_sde"], ["lr_scaling=adam_sde", *given]):
        experiment = load("tracking=none", "dry_run=true", *overrides)
        experiment.model.target = {"_target_": "tests.lightning_modules.Digits"}
        with pytest.raises(ConfigError) as refused:
            prepare(Request(experiment, "", {}, (), tmp_path, tmp_path, (), ""))
        assert str(refused.value).startswith("lr_scaling=adam_sde: it changes betas")
        assert str(refused.value).endswith(
            " of the optimizer, and a LightningModule makes its own; type lr_scaling=sqrt"
        )
