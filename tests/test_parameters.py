"""Which parameters start from what, which of them train, and in which groups of the optimizer."""

import re

import pytest
import torch
from torch import nn

from runner import parameters, schema
from runner.errors import ConfigError


class Network(nn.Module):
    """Names as in real models: embedding, hidden layers with norms, head."""

    def __init__(self, hidden=4):
        super().__init__()
        self.tokens = nn.Embedding(7, 3)
        self.encoder = nn.Sequential(nn.Linear(3, hidden), nn.BatchNorm1d(hidden))
        self.head = nn.Linear(hidden, 2)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.tokens.weight


NAMES = [name for name, _ in Network().named_parameters()]
SGD = {"_target_": "torch.optim.SGD", "momentum": 0.9, "weight_decay": 0.01}


def sgd(*rules, lr=0.1, decay=True, **options):
    return schema.Optimizer(lr, decay, list(rules), {**SGD, **options})


def described(model, settings, multiplier=1.0):
    """[([names], {options}), …] of the groups."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        ([names[id(p)] for p in group["params"]], {k: v for k, v in group.items() if k != "params"})
        for group in parameters.groups(model, settings, multiplier)
    ]


def trained(model):
    return [name for name, p in model.named_parameters() if p.requires_grad]


def refused(line):
    return pytest.raises(ConfigError, match=f"^{re.escape(line)}$")


# Freezing


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        (None, NAMES),
        ("^encoder", ["tokens.weight", "head.weight", "head.bias"]),
        ("bias$", ["tokens.weight", "encoder.0.weight", "encoder.1.weight", "head.weight"]),
        ("^(?!head)", ["head.weight", "head.bias"]),
    ],
)
def test_a_pattern_freezes_the_parameters_whose_name_it_finds(pattern, left):
    model = Network()
    parameters.freeze(model, pattern)
    assert trained(model) == left


def test_a_tied_weight_is_frozen_by_any_of_its_names():
    model = nn.Sequential(Tied(), nn.Linear(1, 1))
    parameters.freeze(model, "head")
    assert trained(model) == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (
            "encodr",
            (
                "model.freeze=encodr: none of the 7 parameters has such a name: tokens.weight, encoder.0.weight, "
                "encoder.0.bias, encoder.1.weight, …; type model.freeze=encoder"
            ),
        ),
        (
            "^xyz",
            (
                "model.freeze=^xyz: none of the 7 parameters has such a name: tokens.weight, encoder.0.weight, "
                "encoder.0.bias, encoder.1.weight, …"
            ),
        ),
        (".", "model.freeze=.: all 7 parameters would be frozen, none would train"),
        ("(", "model.freeze=(: not a regular expression (missing ), unterminated subpattern at position 0)"),
    ],
)
def test_a_pattern_that_freezes_nothing_or_all_is_refused(pattern, line):
    model = Network()
    with refused(line):
        parameters.freeze(model, pattern)
    assert trained(model) == NAMES


def test_a_frozen_batch_norm_keeps_its_statistics_and_the_rest_trains():
    model = Network()
    parameters.freeze(model, "encoder.1")
    model.eval()
    parameters.train_mode(model)
    modes = {name: module.training for name, module in model.named_modules()}
    assert modes == {
        "": True,
        "tokens": True,
        "encoder": True,
        "encoder.0": True,
        "encoder.1": False,
        "head": True,
    }
    model.encoder(torch.randn(5, 3))
    assert torch.equal(model.encoder[1].running_mean, torch.zeros(4))


def test_a_frozen_module_s_children_train():
    model = nn.Linear(2, 2)
    model.inner = nn.Linear(2, 2)
    parameters.freeze(model, "^(weight|bias)")
    parameters.train_mode(model)
    assert (model.training, model.inner.training) == (False, True)


# Groups


def test_without_rules_there_is_one_group_with_the_scaled_lr():
    assert described(Network(), sgd(), multiplier=4.0) == [(NAMES, {"lr": 0.4})]


def test_frozen_parameters_are_in_no_group():
    model = Network()
    parameters.freeze(model, "^encoder|^tokens")
    assert described(model, sgd()) == [(["head.weight", "head.bias"], {"lr": 0.1})]


def test_the_first_rule_that_fits_wins_and_base_lr_groups_come_first():
    rules = [
        {"match": "^head", "lr": 0.5, "momentum": 0.0},
        {"match": "head|tokens|encoder.1", "max_ndim": 1, "lr": 0.25},
        {"min_ndim": 2, "weight_decay": 0.2},
    ]
    assert described(Network(), sgd(*rules), multiplier=2.0) == [
        (["tokens.weight", "encoder.0.weight"], {"weight_decay": 0.2, "lr": 0.2}),
        (["encoder.0.bias"], {"lr": 0.2}),
        (["head.weight", "head.bias"], {"momentum": 0.0, "lr": 1.0}),
        (["encoder.1.weight", "encoder.1.bias"], {"lr": 0.5}),
    ]


def test_norms_and_biases_go_without_decay_unless_a_rule_says_otherwise():
    rules = [{"match": "^head", "lr": 0.2}, {"match": "encoder.1", "weight_decay": 0.3}]
    assert described(Network(), sgd(*rules, decay=False)) == [
        (["encoder.1.weight", "encoder.1.bias"], {"weight_decay": 0.3, "lr": 0.1}),
        (["tokens.weight", "encoder.0.weight"], {"lr": 0.1}),
        (["encoder.0.bias"], {"lr": 0.1, "weight_decay": 0.0}),
        (["head.weight"], {"lr": 0.2}),
        (["head.bias"], {"lr": 0.2, "weight_decay": 0.0}),
    ]


def test_a_tied_weight_is_in_one_group_and_each_of_its_names_counts():
    rules = [{"match": "head", "lr": 0.5}]
    assert described(Tied(), sgd(*rules)) == [(["tokens.weight"], {"lr": 0.5})]


def test_a_rule_for_all_that_is_left_may_find_nothing():
    assert described(Network(), sgd({"match": "."}, {"momentum": 0.5})) == [(NAMES, {"lr": 0.1})]


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        (
            [{"match": "haed", "lr": 1.0}],
            (
                "optimizer.param_groups[0]={'match': 'haed', 'lr': 1.0}: fits no parameter; there are tokens.weight [7, 3], "
                "encoder.0.weight [4, 3], encoder.0.bias [4], encoder.1.weight [4], …"
            ),
        ),
        (
            [{"match": "head"}, {"match": "head.bias"}],
            (
                "optimizer.param_groups[1]={'match': 'head.bias'}: fits no parameter that no rule before it takes; there are "
                "tokens.weight [7, 3], encoder.0.weight [4, 3], encoder.0.bias [4], encoder.1.weight [4], …"
            ),
        ),
        (
            [{"match": "head", "momentun": 0.5}],
            (
                "optimizer.param_groups[0].momentun=0.5: torch.optim.SGD has no such option; a group has dampening, "
                "differentiable, foreach, fused, lr, max_ndim, maximize, min_ndim, momentum, nesterov, weight_decay; "
                "type momentum: 0.5"
            ),
        ),
        (
            [{"mtach": "head", "weight_decay": 0.5}],
            (
                "optimizer.param_groups[0].mtach=head: torch.optim.SGD has no such option; a group has dampening, "
                "differentiable, foreach, fused, lr, match, max_ndim, maximize, min_ndim, momentum, nesterov; "
                "type match: head"
            ),
        ),
        (
            [{"match": "head", "params": 1}],
            (
                "optimizer.param_groups[0].params=1: torch.optim.SGD has no such option; a group has dampening, "
                "differentiable, foreach, fused, lr, max_ndim, maximize, min_ndim, momentum, nesterov, weight_decay"
            ),
        ),
        (
            [{"match": "*"}],
            "optimizer.param_groups[0].match=*: not a regular expression (nothing to repeat at position 0)",
        ),
        ([{"min_ndim": "two"}], "optimizer.param_groups[0].min_ndim=two: must be a number, 0 or more"),
        ([{"lr": -1.0}], "optimizer.param_groups[0].lr=-1.0: must be a number, 0 or more"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rules, line):
    with refused(line):
        parameters.groups(Network(), sgd(*rules), 1.0)


def test_what_an_optimizer_refuses_is_a_config_error_of_one_line():
    with refused("optimizer=torch.optim.SGD: ValueError: Invalid momentum value: -1.0"):
        parameters.optimizer(Network(), sgd(momentum=-1.0), 1.0)


def test_an_optimizer_may_be_made_by_a_function():
    made = parameters.optimizer(
        Network(), schema.Optimizer(0.1, target={"_target_": f"{__name__}.by_a_function"}), 2.0
    )
    assert (type(made), made.defaults["lr"], made.defaults["momentum"]) == (torch.optim.SGD, 0.2, 0.25)


def by_a_function(groups, lr):
    return torch.optim.SGD(groups, lr, momentum=0.25)
