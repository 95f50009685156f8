"""The rules: values, and what all of them share."""

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner import lr_scaling
from runner.lr_scaling import RuleError, Scaled

ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}
RULES = {
    "none": {},
    "linear": {},
    "sqrt": {},
    "linear_warmup": {},
    "legw": {},
    "adam_sde": ADAM,
    "adasum": {},
    "adascale": {},
}
WITH_EACH_RULE = pytest.mark.parametrize("name", RULES)
kappas = st.floats(1 / 64, 9.9)  # below 10, where 0.9 of adam_sde would be 0


def scaled(name, kappa, **optimizer):
    """A rule by its name, for Adam's own betas and eps."""
    found = getattr(lr_scaling, name)(kappa, **{**RULES[name], **optimizer})
    return found if isinstance(found, Scaled) else Scaled(found)


def test_all_rules_of_the_module_are_tested():
    own = {
        name
        for name, found in vars(lr_scaling).items()
        if getattr(found, "__module__", "") == lr_scaling.__name__ and not isinstance(found, type)
    }
    assert own == set(RULES)


@WITH_EACH_RULE
def test_at_the_base_batch_the_base_lr_is_kept_and_the_optimizer_its_own(name):
    found = scaled(name, 1.0)
    assert found.multiplier == 1.0
    assert found.optimizer == {} or found.optimizer == {"betas": [0.9, 0.999], "eps": 1e-8}


@WITH_EACH_RULE
@given(kappas, kappas)
def test_a_larger_batch_never_gets_a_smaller_lr_nor_a_shorter_warm_up(name, one, other):
    small, large = sorted((one, other))
    low, high = scaled(name, small), scaled(name, large)
    assert low.multiplier <= high.multiplier
    assert (low.warmup_epochs or 0) <= (high.warmup_epochs or 0)
    for beta, smaller in zip(low.optimizer.get("betas", []), high.optimizer.get("betas", []), strict=True):
        assert 0 < smaller <= beta < 1
    assert low.optimizer.get("eps", 0) >= high.optimizer.get("eps", 0)


@WITH_EACH_RULE
@given(st.floats(1 / 8, 2.9), st.floats(1 / 8, 2.9))
@example(2.0, 2.0)
def test_scaling_twice_is_scaling_by_the_product(name, one, other):
    """From the base batch to any, and on from there: what the second step starts with is what the first gave."""
    first, both = scaled(name, one), scaled(name, one * other)
    again = scaled(name, other, **first.optimizer)
    assert first.multiplier * again.multiplier == pytest.approx(both.multiplier, rel=1e-12)
    for key, value in both.optimizer.items():
        assert again.optimizer[key] == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "kappa", "expected"),
    [
        ("none", 64, Scaled(1.0)),
        ("none", 0.25, Scaled(1.0)),
        ("linear", 4, Scaled(4.0)),
        ("linear", 0.25, Scaled(0.25)),
        ("linear", 1.5, Scaled(1.5)),
        ("sqrt", 4, Scaled(2.0)),
        ("sqrt", 0.25, Scaled(0.5)),
        ("sqrt", 2, Scaled(math.sqrt(2))),
        # Goyal et al. 2017: 256 images, LR 0.1 → 8192 images, LR 3.2, reached after 5 epochs.
        ("linear_warmup", 8192 / 256, Scaled(32.0, 5.0)),
        ("linear_warmup", 1, Scaled(1.0)),
        ("linear_warmup", 0.5, Scaled(0.5)),
        # You et al. 2019, ImageNet: batch 1K, LR 2^2.5, 0.3125 epochs → batch 32K, LR 2^5, 10 epochs.
        ("legw", 32, Scaled(2**2.5, 10.0, 0.0)),
        ("legw", 1, Scaled(1.0, 0.3125, 0.0)),
        ("adam_sde", 4, Scaled(2.0, optimizer={"betas": [0.6, 0.996], "eps": 5e-9})),
        ("adam_sde", 0.25, Scaled(0.5, optimizer={"betas": [0.975, 0.99975], "eps": 2e-8})),
        ("adasum", 8, Scaled(1.0)),
        ("adascale", 8, Scaled(1.0, is_adaptive=True)),
    ],
)
def test_values(name, kappa, expected):
    found = scaled(name, kappa)
    assert found == dataclasses.replace(expected, optimizer=found.optimizer)
    assert found.optimizer.keys() == expected.optimizer.keys()
    for key, value in expected.optimizer.items():
        assert found.optimizer[key] == pytest.approx(value, rel=1e-12)


def test_adasum_with_nccl_is_scaled_by_the_workers_of_a_node_times_the_accumulated_batches():
    """As lr_scaler of Horovod's pytorch_imagenet_resnet50.py: local_size × batches_per_allreduce."""
    assert lr_scaling.adasum(64.0, uses_nccl=True, local_size=8, accumulation_steps=2) == 16.0
    assert lr_scaling.adasum(64.0, uses_nccl=False, local_size=8, accumulation_steps=2) == 1.0


@given(st.floats(1 / 64, 1000), st.floats(0, 0.9999))
@example(10.0, 0.9)
@example(1000.0, 0.999)
def test_a_beta_is_never_scaled_to_0_or_less(kappa, beta):
    betas = [beta, 0.9999999]
    if kappa * (1 - beta) < 1 - 1e-9:
        found = lr_scaling.adam_sde(kappa, betas, 1e-8)
        assert all(0 < each < 1 for each in found.optimizer["betas"])
        return
    with pytest.raises(RuleError) as refused:
        lr_scaling.adam_sde(kappa, betas, 1e-8)
    assert refused.value.below == pytest.approx(1 / (1 - beta))
