"""What a config may name: one's own code, and of the rest only what is allowed."""

import sys

import pytest

from runner import build
from runner.config import check_targets
from runner.errors import ConfigError
from runner.targets import ALLOWED
from tests.composed import load

MAY = f"a config may name your own code, and {', '.join(ALLOWED)}"
STANDARD = f"is of Python's standard library; {MAY}"
NEVER = "downloads, unpickles or compiles what it is given: no config may name it"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, outside the installed packages."""
    (tmp_path / "my_code.py").write_text(
        "import functools, os, shutil, subprocess\n"
        "import mlflow\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n    pass\n"
        "half = functools.partial(nn.Linear, 1)\n"
        "remove = functools.partial(shutil.rmtree, '/nowhere')\n"
        "def run():\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_code"
    sys.modules.pop("my_code", None)


def refusal(path, allowed=()):
    with pytest.raises(ConfigError) as refused:
        build.check({"_target_": path, "_partial_": True}, "model", allowed=allowed)
    return str(refused.value)


@pytest.mark.parametrize(
    "path",
    [
        "torch.nn.Linear",
        "torch.nn.functional.relu",
        "torch.nn.functional.conv2d",
        "torch.nn.functional.gelu",
        "torch.nn.Embedding.from_pretrained",
        "torch.optim.AdamW",
        "torch.optim.lr_scheduler.OneCycleLR",
        "torch.utils.data.TensorDataset",
        "torchmetrics.classification.MulticlassAUROC",
        "pytorch_optimizer.Lion",
        "models.mlp.MLP",
        "runner.lr_scaling.sqrt",
        "my_code.Net",
        "my_code.run",
        "my_code.half",
        "my_code.nn.Linear",
    ],
)
def test_own_code_and_what_is_allowed_may_be_named(own, path):
    build.check({"_target_": path, "_partial_": True}, "model")


@pytest.mark.parametrize("path", ["os.system", "builtins.eval", "subprocess.run", "shutil.rmtree"])
def test_the_standard_library_is_refused(path):
    assert refusal(path) == f"model._target_={path}: {STANDARD}"
    assert refusal(path, ["timm"]) == f"model._target_={path}: {STANDARD}, timm"


def test_an_installed_package_is_refused_until_it_is_allowed():
    may = f"is of an installed package; {MAY}"
    assert (
        refusal("mlflow.start_run")
        == f"model._target_=mlflow.start_run: {may}; type allowed_targets=[mlflow]"
    )
    assert refusal("torch.compile").endswith("; type allowed_targets=[torch]")
    assert refusal("mlflow.start_run", ["timm"]).endswith(", timm; type allowed_targets=[timm,mlflow]")
    build.check({"_target_": "mlflow.start_run", "_partial_": True}, "model", allowed=["mlflow"])


@pytest.mark.parametrize(
    "path", ["torch.hub.load", "torch.load", "torch.utils.cpp_extension.load", "torch.serialization.load"]
)
def test_what_downloads_unpickles_or_compiles_is_refused_whatever_is_allowed(path):
    assert refusal(path, ["torch"]) == f"model._target_={path}: {NEVER}"


@pytest.mark.parametrize(
    ("path", "is_really", "why"),
    [
        ("my_code.os.system", "posix.system", STANDARD),
        ("my_code.subprocess.run", "subprocess.run", STANDARD),
        ("my_code.remove", "shutil.rmtree", STANDARD),
        ("torch.nn.modules.module.warnings.warn", "_warnings.warn", STANDARD),
        ("torch.nn.functional.torch.load", "torch.serialization.load", NEVER),
        ("torch.nn.functional.torch.hub.load", "torch.hub.load", NEVER),
        ("my_code.mlflow.start_run", "mlflow.tracking.fluent.start_run", "is of an installed package; "),
    ],
)
def test_an_allowed_path_to_something_else_is_refused(own, path, is_really, why):
    assert refusal(path).startswith(f"model._target_={path}: this is {is_really}, which {why}")


def test_what_lies_behind_torch_stays_there_when_all_of_torch_is_allowed():
    path = "torch.utils.cpp_extension.subprocess.run"
    assert refusal(path, ["torch"]) == f"model._target_={path}: {NEVER}"
    assert "this is subprocess.run, which" in refusal("torch.utils.collect_env.subprocess.run", ["torch"])


@pytest.mark.parametrize("path", ["models.mlp.MLP.__init__.__globals__", "my_code.__builtins__.eval"])
def test_python_s_own_attributes_lead_nowhere(own, path):
    assert refusal(path) == (
        f"model._target_={path}: leads through Python's own attributes; name a class or a function"
    )


def test_nothing_is_imported_before_it_is_allowed(tmp_path):
    assert "antigravity" not in sys.modules
    refusal("antigravity.fly")
    assert "antigravity" not in sys.modules


def test_every_target_of_a_config_is_looked_at():
    for key, override in {
        "model": "model._target_=os.system",
        "loss": "+loss._target_=os.system",
        "metrics.auc": "+metrics.auc._target_=os.system",
        "optimizer": "optimizer._target_=os.system",
        "lr_scaling": "lr_scaling._target_=os.system",
        "dataset.transform": "+dataset.transform._target_=os.system",
    }.items():
        with pytest.raises(
            ConfigError, match=rf"^{key}._target_=os\.system: is of Python's standard library"
        ):
            check_targets(load(override))
    with pytest.raises(ConfigError, match="is of an installed package"):
        check_targets(load("model._target_=mlflow.start_run"))
    with pytest.raises(ConfigError, match=r"^model\.in_features=None: mlflow\.start_run takes run_id"):
        check_targets(load("model._target_=mlflow.start_run", "allowed_targets=[mlflow]"))
