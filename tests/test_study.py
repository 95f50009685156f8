"""What a study concludes, from planted results."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runner.report.study import Exponent, Mean, Study, Trial, mean_of, trial
from runner.schema import Mode
from tests.fakes import make_experiment

BASE = 0.1
MULTIPLIER = {"none": lambda kappa: 1.0, "sqrt": math.sqrt, "linear": float, "linear_warmup": float}


def planted(
    rule: str, kappa: int, value: float | None, seed: int = 0, base: float = BASE, **other: Any
) -> Trial:
    """A trial of `kappa` accumulated rows; without a value it diverged."""
    return Trial(
        **{
            "rule": rule,
            "num_workers": 1,
            "batch_size": 1,
            "accumulation_steps": kappa,
            "kappa": float(kappa),
            "base_lr": base,
            "scaled_lr": base * MULTIPLIER[rule](kappa),
            "has_warmup": rule == "linear_warmup",
            "seed": seed,
            "value": value,
            "status": "diverged" if value is None else "finished",
            **other,
        }
    )


def study(*trials: Trial) -> Study:
    return Study(trials, "val/accuracy", Mode.max)


def with_best_lr(power: float, seeds: int = 1, mode: Mode = Mode.max) -> Study:
    """Rules and base LRs whose metric is a parabola in log LR around 0.1 × batch^power."""
    trials = []
    for kappa in (1, 4, 16):
        for rule in ("none", "sqrt", "linear"):
            for base in (BASE / 2, BASE, 2 * BASE):
                octaves = math.log2(base * MULTIPLIER[rule](kappa) / (BASE * kappa**power))
                value = (0.9 - 0.01 * octaves**2) * (1 if mode is Mode.max else -1)
                trials += [planted(rule, kappa, value, seed, base) for seed in range(seeds)]
    return Study(trials, "val/loss" if mode is Mode.min else "val/accuracy", mode)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
def test_a_planted_exponent_is_recovered(power: float, mode: Mode) -> None:
    found = with_best_lr(power, 3, mode).exponent()
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((power, power, power), abs=1e-12)
    assert {batch: best.lr for batch, best in found.best.items()} == pytest.approx(
        {1: 0.1, 4: 0.1 * 4**power, 16: 0.1 * 16**power}
    )


def test_a_best_lr_says_its_neighbours_and_where_the_grid_ends() -> None:
    found = with_best_lr(1.0).exponent()
    assert found is not None
    first, last = found.best[1], found.best[16]
    assert (first.below, first.lr, first.above) == (0.05, 0.1, 0.2)
    assert (last.below, last.lr, last.above) == pytest.approx((0.8, 1.6, 3.2))
    upper = study(*(planted("none", kappa, base, base=base) for kappa in (1, 2) for base in (0.1, 0.2)))
    at_the_end = upper.exponent()
    assert at_the_end is not None
    assert (at_the_end.value, at_the_end.best[2].above) == (0.0, None)


def test_one_seed_has_no_interval() -> None:
    found = with_best_lr(1.0).exponent()
    assert found is not None
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_seeds_that_disagree_span_the_interval() -> None:
    # Two seeds: a resample has the first alone in a quarter of the cases, and the second alone in another.
    trials = [planted("none", 1, 1.0, seed) for seed in (0, 1)]
    trials += [planted("linear", 4, value, seed) for seed, value in ((0, 1.0), (1, 0.0))]
    trials += [planted("sqrt", 4, value, seed) for seed, value in ((0, 0.0), (1, 0.9))]
    found = study(*trials).exponent()
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 0.5, 1.0))


def test_an_lr_that_a_seed_did_not_survive_is_no_candidate_and_warm_up_is_left_out() -> None:
    trials = [planted("none", 1, 0.9, seed) for seed in (0, 1)]
    trials += [planted("linear", 4, 1.0, 0), planted("linear", 4, None, 1)]
    trials += [planted("sqrt", 4, 0.8, seed) for seed in (0, 1)]
    trials += [planted("linear_warmup", 4, 1.0, seed, base=1.0) for seed in (0, 1)]
    found = study(*trials).exponent()
    assert found is not None
    assert (found.value, found.best[4].above) == pytest.approx((0.5, 0.4))
    assert study(*trials[:2]).exponent() is None
    assert study(planted("none", 1, None), planted("none", 4, None)).exponent() is None


def test_the_same_training_twice_counts_once() -> None:
    trials = [planted(rule, 1, value, 0) for rule, value in (("none", 0.8), ("sqrt", 0.9))]
    found = study(*trials, planted("linear", 1, 0.9, 0, base=0.2), planted("none", 1, 0.7, 0, base=0.4))
    assert found.base_lr == 0.2  # 0.9 beats the mean 0.85 of the same LR by two rules


def test_the_interval_is_student_s() -> None:
    assert mean_of([1.0, 2.0, 3.0]) == Mean(2.0, pytest.approx(4.302652729911275 / math.sqrt(3)), 3)
    assert math.isnan(mean_of([1.0]).half)
    assert math.isnan(mean_of([]).mean)


def test_the_base_lr_is_tuned_at_the_smallest_batch_on_seeds_that_all_survived() -> None:
    trials = [planted("none", 1, 0.8, seed, base=0.1) for seed in (0, 1)]
    trials += [planted("none", 1, 0.9, 0, base=0.2), planted("none", 1, None, 1, base=0.2)]
    trials += [planted("none", 4, 0.99, seed, base=0.2) for seed in (0, 1)]
    assert study(*trials).base_lr == 0.1


def orderings(sqrt: float | None, linear: float | None, breaks: float | None, warm: float | None) -> Study:
    """Three batches; the rules at the medium one against none's 0.5, linear at the largest against 0.9 at the smallest.

    Two seeds each, whose differences from a constant are d − 0.01 and d + 0.01: an interval of ± 12.706 × 0.01. The noise of
    linear at the medium batch goes against sqrt's, that of the warm-up with linear's.
    """
    trials = []
    for seed, noise in ((0, -0.01), (1, 0.01)):
        trials += [planted(rule, 1, 0.9, seed) for rule in MULTIPLIER]
        trials += [planted("none", 4, 0.5, seed)]
        for rule, kappa, value in (
            ("sqrt", 4, sqrt),
            ("linear", 4, linear),
            ("linear", 16, breaks),
            ("linear_warmup", 16, warm),
        ):
            sign = -1 if (rule, kappa) == ("linear", 4) else 1
            trials.append(planted(rule, kappa, None if value is None else value + sign * noise, seed))
    return study(*trials)


def test_the_orderings_of_goyal_et_al_are_shown_where_the_intervals_say_so() -> None:
    assert [verdict.line() for verdict in orderings(0.7, 0.98, 0.4, 0.9).verdicts()] == [
        "sqrt is better than none at batch 4: shown: val/accuracy by +0.2000 [+0.0729, +0.3271], 2 seeds",
        "linear is better than sqrt at batch 4: shown: val/accuracy by +0.2800 [+0.0259, +0.5341], 2 seeds",
        "linear is worse at batch 16 than at 1: shown: val/accuracy by +0.5000 [+0.3729, +0.6271], 2 seeds",
        "linear_warmup is better than linear at batch 16: shown: val/accuracy by +0.5000 [+0.5000, +0.5000], 2 seeds",
    ]


def test_what_an_interval_does_not_say_is_not_shown() -> None:
    assert [verdict.line() for verdict in orderings(0.6, 0.62, 0.85, 0.84).verdicts()] == [
        "sqrt is better than none at batch 4: not shown: val/accuracy by +0.1000 [-0.0271, +0.2271], 2 seeds",
        "linear is better than sqrt at batch 4: not shown: val/accuracy by +0.0200 [-0.2341, +0.2741], 2 seeds",
        "linear is worse at batch 16 than at 1: not shown: val/accuracy by +0.0500 [-0.0771, +0.1771], 2 seeds",
        "linear_warmup is better than linear at batch 16: not shown: val/accuracy by -0.0100 [-0.0100, -0.0100], 2 seeds",
    ]


def test_what_diverged_is_worse_than_what_did_not() -> None:
    assert [verdict.line() for verdict in orderings(0.7, None, None, 0.9).verdicts()][1:] == [
        (
            "linear is better than sqrt at batch 4: not shown: val/accuracy by n/a, 0 seeds; "
            "without a value: 2 of linear, 0 of sqrt"
        ),
        "linear is worse at batch 16 than at 1: shown: linear has no value at batch 16 for any seed",
        "linear_warmup is better than linear at batch 16: shown: linear has no value at batch 16 for any seed",
    ]


def test_one_that_survives_on_fewer_seeds_is_not_better() -> None:
    trials = [planted(rule, 1, 0.9, seed) for rule in MULTIPLIER for seed in range(3)]
    trials += [planted("none", 4, 0.1, seed) for seed in range(3)]
    trials += [planted("sqrt", 4, value, seed) for seed, value in enumerate((0.9, 0.91, None))]
    verdict = study(*trials).verdicts()[0]
    assert verdict.why == (
        "val/accuracy by +0.8050 [+0.7415, +0.8685], 2 seeds; without a value: 1 of sqrt, 0 of none"
    )
    assert not verdict.shown


def test_what_was_not_run_is_said_and_one_seed_shows_nothing() -> None:
    trials = [planted("none", kappa, 0.9) for kappa in (1, 4, 16)]
    lines = [verdict.line() for verdict in study(*trials, planted("sqrt", 4, 0.95)).verdicts()]
    assert lines == [
        "sqrt is better than none at batch 4: not shown: val/accuracy by +0.0500 [n/a], 1 seed",
        "linear is better than sqrt at batch 4: not shown: there is no job of linear at batch 4",
        "linear is worse at batch 16 than at 1: not shown: there is no job of linear at batch 1",
        "linear_warmup is better than linear at batch 16: not shown: there is no job of linear_warmup at batch 16",
    ]
    assert len(study(*trials[:2]).verdicts()) == 2  # a single batch above the smallest is no large one
    assert study(trials[0]).verdicts() == []


def test_lower_is_better_where_the_mode_says_so() -> None:
    trials = [planted("none", 1, 0.1, seed) for seed in (0, 1)]
    trials += [planted("none", 4, 0.5, seed) for seed in (0, 1)]
    trials += [planted("sqrt", 4, value, seed) for seed, value in ((0, 0.3), (1, 0.31))]
    first = Study(trials, "val/loss", Mode.min).verdicts()[0]
    assert first.line().endswith("shown: val/loss by +0.1950 [+0.1315, +0.2585], 2 seeds")
    assert first.shown


FINISHED = {"status": "FINISHED", "best": {"val/loss": 0.25}}


@pytest.mark.parametrize(
    ("result", "value", "status"),
    [
        (FINISHED, 0.25, "finished"),
        ({"status": "FINISHED", "best": {}}, None, "diverged"),
        (
            {"status": "FAILED", "error": "rank 0: step 3: the loss of rank 0 is not finite; type"},
            None,
            "diverged",
        ),
        ({"status": "FAILED", "error": "rank 1 was killed"}, None, "failed"),
        ({"status": "FAILED", "best": {"val/loss": 0.25}, "error": "disk full"}, None, "failed"),
    ],
)
def test_a_job_is_a_trial(result: dict[str, Any], value: float | None, status: str) -> None:
    settings = {"scaling.num_workers": 4, "trainer.accumulation_steps": 2, "trainer.batch_size": 8, "seed": 7}
    found = trial(make_experiment({**settings, "scheduler.warmup_epochs": 2.0}), result)
    assert found == Trial("linear", 4, 8, 2, 8.0, 0.1, pytest.approx(0.8), True, 7, value, status)
    assert found.batch == 64
    assert found.made_of == "4 × 8 × 2 simulated"


def test_a_dry_run_is_no_trial() -> None:
    assert trial(make_experiment(), {"status": "DRY_RUN"}) is None


def test_a_batch_of_real_workers_is_not_simulated() -> None:
    found = trial(make_experiment({"scaling.num_workers": 4}), FINISHED)
    assert found is not None
    assert found.made_of == "4 × 32"
    assert not found.has_warmup


def test_an_exponent_is_not_affected_by_how_a_batch_came_about() -> None:
    # Batch 4 by accumulation and by workers: one batch, whose values are averaged.
    trials = [planted("none", 1, 0.9), planted("linear", 4, 0.9), planted("sqrt", 4, 0.7)]
    trials += [planted("linear", 4, 0.4, num_workers=4, accumulation_steps=1)]
    found = study(*trials).exponent()
    assert isinstance(found, Exponent)
    assert found.value == pytest.approx(0.5)  # (0.9 + 0.4) / 2 is less than 0.7
