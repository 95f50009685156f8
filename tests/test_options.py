"""Options that may change while a training goes on."""

import pytest

from runner.options import may_change, of_optimizer, with_its_rate, with_options
from tests.fakes import make_experiment, plan_of


@pytest.mark.parametrize(
    ("key", "may"),
    [
        ("optimizer.lr", True),
        ("optimizer.weight_decay", True),
        ("trainer.clip_norm", True),
        ("trainer.clip_value", True),
        ("loss.label_smoothing", True),
        ("optimizer._target_", False),
        ("optimizer.param_groups", False),
        ("optimizer.decay_norms_and_biases", False),
        ("optimizer", False),
        ("optimizer.a.b", False),
        ("trainer.batch_size", False),
        ("trainer.ema_decay", False),
        ("model.dropout", False),  # models/mlp.py has other layers without it
        ("scaling.num_workers", False),
        ("seed", False),
    ],
)
def test_what_changes_no_shape_row_or_length_may_change(key, may):
    assert may_change(key) is may


def test_options_are_put_where_the_config_has_them():
    experiment = make_experiment()
    options = {
        "optimizer.lr": 0.3,
        "optimizer.momentum": 0.8,
        "trainer.clip_norm": 2.0,
        "loss.label_smoothing": 0.1,
    }
    found = with_options(experiment, options)
    assert (found.optimizer.lr, found.trainer.clip_norm, found.loss.label_smoothing) == (0.3, 2.0, 0.1)
    assert found.optimizer.target == {"_target_": "torch.optim.SGD", "momentum": 0.8}
    assert (experiment.optimizer.lr, "momentum" in experiment.optimizer.target) == (0.1, False)
    assert with_options(experiment, {}) == experiment


def test_the_rate_follows_its_rule_and_nothing_else_of_the_plan_changes():
    plan = plan_of({"scaling.num_workers": 4})
    found = with_its_rate(
        plan, with_options(make_experiment({"scaling.num_workers": 4}), {"optimizer.lr": 0.3})
    )
    assert found.learning_rate.line() == "lr 0.3 (base, batch 32) × 4 (linear: 128/32) = 1.2"
    assert plan == plan_of({"scaling.num_workers": 4, "optimizer.lr": 0.1})
    assert found == plan_of({"scaling.num_workers": 4, "optimizer.lr": 0.3})


def test_the_lr_is_no_option_of_the_optimizer_s_groups():
    assert of_optimizer(["optimizer.lr", "trainer.clip_norm", "optimizer.momentum"]) == ("momentum",)
