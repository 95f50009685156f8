"""From `_target_` to object: what is found, what is refused in which words, what is filled in."""

import functools
from pathlib import Path

import pytest
import torch

from runner.build import arguments, build, check, locate
from runner.errors import ConfigError

LINEAR = {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2}
SHAPES = """
CONSTANT = 5

def area(width, height=2):
    return width * height

def total(first, *rest, **named):
    return first + sum(rest) + sum(named.values())

def weigh(parameters, lr, *, momentum=0.0):
    return parameters, lr, momentum
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A user's own folder on the import path; write(name, source) adds a module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, source: str) -> None:
        path = Path(tmp_path, *name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)

    return write


@pytest.fixture
def shapes(code, request):
    """A module of its own for each test, so that none sees another's import."""
    name = "shapes_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    code(name, SHAPES)
    return name


def refusal(function, *given, **named):
    with pytest.raises(ConfigError) as refused:
        function(*given, **named)
    return str(refused.value)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("torch.nn.Linear", torch.nn.Linear),
        ("torch.nn.modules.linear.Linear", torch.nn.Linear),
        ("torch.optim.lr_scheduler.ConstantLR", torch.optim.lr_scheduler.ConstantLR),
        ("torch.nn.Linear.forward", torch.nn.Linear.forward),
    ],
)
def test_locate_follows_packages_modules_and_attributes(path, found):
    assert locate(path) is found


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "torch.nn.Linaer",
            "model._target_=torch.nn.Linaer: torch.nn has no Linaer; type model._target_=torch.nn.Linear",
        ),
        (
            "torch.optm.SGD",
            "model._target_=torch.optm.SGD: torch has no optm; type model._target_=torch.optim.SGD",
        ),
        (
            "models.mlpp.MLP",
            "model._target_=models.mlpp.MLP: models has no mlpp; type model._target_=models.mlp.MLP",
        ),
        (
            "modles.mlp.MLP",
            "model._target_=modles.mlp.MLP: the import path has no modles; type model._target_=models.mlp.MLP",
        ),
        ("torch.nn.Xyzzy", "model._target_=torch.nn.Xyzzy: torch.nn has no Xyzzy"),
        ("MLP", "model._target_=MLP: a dotted path such as torch.nn.Linear is needed"),
        ("models/mlp.py", "model._target_=models/mlp.py: a dotted path such as torch.nn.Linear is needed"),
        ("models..MLP", "model._target_=models..MLP: a dotted path such as torch.nn.Linear is needed"),
        ("", "model._target_=: a dotted path such as torch.nn.Linear is needed"),
        (7, "model._target_=7: a dotted path such as torch.nn.Linear is needed"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_the_nearest_name(path, message):
    assert refusal(locate, path, "model._target_") == message


def test_a_module_whose_import_raises_is_named_with_its_error(code):
    code("broken_module", "import no_such_package")
    assert refusal(locate, "broken_module.Net", "model._target_") == (
        "model._target_=broken_module.Net: importing broken_module failed with "
        "ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_a_module_with_a_runtime_error_or_bad_syntax_is_named_with_its_error(code):
    code("raising_module", "raise RuntimeError('no licence')")
    assert refusal(locate, "raising_module.Net").endswith(
        "importing raising_module failed with RuntimeError: no licence"
    )
    code("unparsed_module", "def Net(:")
    assert "importing unparsed_module failed with SyntaxError: " in refusal(locate, "unparsed_module.Net")


def test_a_package_whose_import_raises_is_named_with_its_error(code):
    code("raising_package.__init__", "raise RuntimeError('no licence')")
    code("raising_package.net", "class Net: pass")
    assert refusal(locate, "raising_package.net.Net", "model._target_") == (
        "model._target_=raising_package.net.Net: importing raising_package failed with "
        "RuntimeError: no licence"
    )


def test_check_accepts_what_build_can_call(shapes):
    check(LINEAR, "model")
    check({"_target_": f"{shapes}.area", "width": None}, "model")
    check({"_target_": f"{shapes}.area", "_args_": [1, 2]}, "model")
    check({"_target_": f"{shapes}.weigh", "lr": 0.1}, "optimizer", positional=1)


def test_check_accepts_any_number_of_arguments_where_the_callable_does(shapes):
    check({"_target_": f"{shapes}.total", "_args_": [1, 2, 3], "any": 4}, "model")
    assert "model.first=???" in refusal(check, {"_target_": f"{shapes}.total", "any": 4}, "model")


def test_check_refuses_a_misspelt_argument_with_the_nearest(shapes):
    node = {"_target_": f"{shapes}.area", "width": 1, "hight": 3}
    assert refusal(check, node, "model") == (
        f"model.hight=3: {shapes}.area takes width, height; type model.height=3"
    )


def test_check_refuses_an_argument_that_resembles_none(shapes):
    node = {"_target_": f"{shapes}.area", "width": 1, "colour": "red"}
    assert refusal(check, node, "model") == (
        f"model.colour=red: {shapes}.area takes width, height; type ~model.colour"
    )


def test_check_refuses_a_missing_argument(shapes):
    assert refusal(check, {"_target_": f"{shapes}.area", "height": 1}, "model") == (
        f"model.width=???: needed: {shapes}.area takes width, height; type +model.width=…"
    )


def test_check_refuses_an_argument_that_runner_passes_itself(shapes):
    node = {"_target_": f"{shapes}.weigh", "lr": 0.1, "parameters": 1}
    assert refusal(check, node, "optimizer", 1) == (
        f"optimizer.parameters=1: {shapes}.weigh takes lr, momentum; type ~optimizer.parameters"
    )


def test_check_refuses_more_positional_arguments_than_there_are(shapes):
    message = refusal(check, {"_target_": f"{shapes}.area", "_args_": [1, 2, 3]}, "model")
    assert message.startswith("model._args_=[1, 2, 3]: ")


def test_check_refuses_a_target_that_cannot_be_called(shapes):
    assert refusal(check, {"_target_": f"{shapes}.CONSTANT"}, "model") == (
        f"model._target_={shapes}.CONSTANT: a int cannot be called"
    )
    assert refusal(check, {"_target_": "torch.nn.functional"}, "model") == (
        "model._target_=torch.nn.functional: a module cannot be called"
    )


def test_check_looks_into_nested_targets_and_names_their_key():
    wrong = {"_target_": "torch.nn.Sequential", "_args_": [LINEAR, {**LINEAR, "bais": False}]}
    assert refusal(check, wrong, "model").startswith("model._args_[1].bais=False: torch.nn.Linear takes ")
    wrong = {"_target_": "torch.nn.Sequential", "head": {"_target_": "torch.nn.Linaer"}}
    assert refusal(check, wrong, "model").startswith("model.head._target_=torch.nn.Linaer: ")


def test_check_lets_a_partial_leave_arguments_open_but_not_misspell_them(shapes):
    check({"_target_": f"{shapes}.area", "_partial_": True}, "model")
    with pytest.raises(ConfigError, match=r"type model\.height=3"):
        check({"_target_": f"{shapes}.area", "_partial_": True, "hight": 3}, "model")


def test_build_calls_with_positional_own_positional_and_keyword_arguments(shapes):
    assert build({"_target_": f"{shapes}.area", "width": 3, "height": 5}) == 15
    assert build({"_target_": f"{shapes}.area", "_args_": [3]}) == 6
    assert build({"_target_": f"{shapes}.weigh", "lr": 0.5, "momentum": 0.9}, "p") == ("p", 0.5, 0.9)
    assert build({"_target_": f"{shapes}.total", "_args_": [10], "a": 100}, 1) == 111


def test_build_of_nested_nodes_makes_the_inner_objects_first():
    inner = [LINEAR, {"_target_": "torch.nn.ReLU"}]
    model = build({"_target_": "torch.nn.Sequential", "_args_": inner})
    assert [type(layer).__name__ for layer in model] == ["Linear", "ReLU"]
    assert model[0].weight.shape == (2, 3)


def test_build_of_a_partial_waits_for_its_call(shapes):
    later = build({"_target_": f"{shapes}.area", "_partial_": True, "height": 7})
    assert isinstance(later, functools.partial)
    assert later(2) == 14


def test_null_is_filled_from_the_facts_by_name_and_given_values_are_kept():
    node = {**LINEAR, "in_features": None}
    facts = {"in_features": 64, "out_features": 10, "input_shape": (8, 8)}
    built = build(node, facts=facts)
    assert (built.in_features, built.out_features) == (64, 2)
    nested = build({"_target_": "torch.nn.Sequential", "_args_": [node]}, facts=facts)
    assert nested[0].in_features == 64
    assert node["in_features"] is None


def test_null_without_a_fact_stays_none(shapes):
    assert build({"_target_": f"{shapes}.weigh", "lr": None}, 1, facts={"in_features": 3}) == (1, None, 0.0)


def test_build_returns_plain_values_as_they_are_and_walks_containers():
    assert build(7) == 7
    built = build({"a": [1, {"_target_": "torch.nn.ReLU"}], "b": "text"})
    assert built["b"] == "text"
    assert built["a"][0] == 1
    assert isinstance(built["a"][1], torch.nn.ReLU)


def test_errors_of_the_callable_itself_pass_through():
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        build({"_target_": "torch.nn.Dropout", "p": 7})


def test_arguments_are_what_is_not_reserved():
    assert arguments({**LINEAR, "_partial_": True, "_args_": []}) == {"in_features": 3, "out_features": 2}
