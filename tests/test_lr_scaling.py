"""The rules: values, and what all of them share."""

import math

import pytest

from runner import lr_scaling

RULES = [
    function for name, function in vars(lr_scaling).items() if callable(function) and not name.startswith("_")
]


def test_there_are_these_rules():
    assert [rule.__name__ for rule in RULES] == ["none", "linear", "sqrt"]


@pytest.mark.parametrize("rule", RULES)
def test_at_the_base_batch_the_base_lr_is_kept(rule):
    assert rule(1) == 1.0


@pytest.mark.parametrize("rule", RULES)
def test_a_larger_batch_never_gets_a_smaller_lr(rule):
    values = [rule(kappa) for kappa in (0.125, 0.5, 1, 1.5, 2, 4, 256)]
    assert values == sorted(values)


@pytest.mark.parametrize(
    ("rule", "kappa", "multiplier"),
    [
        (lr_scaling.none, 64, 1.0),
        (lr_scaling.none, 0.25, 1.0),
        (lr_scaling.linear, 4, 4.0),
        (lr_scaling.linear, 0.25, 0.25),
        (lr_scaling.linear, 1.5, 1.5),
        (lr_scaling.sqrt, 4, 2.0),
        (lr_scaling.sqrt, 0.25, 0.5),
        (lr_scaling.sqrt, 2, math.sqrt(2)),
    ],
)
def test_values(rule, kappa, multiplier):
    assert rule(kappa) == multiplier
