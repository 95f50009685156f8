"""What a training leaves behind in its process is gone before the next one: each thing is really changed, and really put back."""

import gc
import os
import random
import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.modules import module

from runner.process_state import GLOBAL_HOOKS, ProcessState

PROJECT = Path(__file__).resolve().parents[1]


def nothing(*arguments):
    pass


def random_numbers():
    """Asked after the state was read: the state that gives them is part of what is put back."""
    return random.random(), np.random.random(), torch.rand(1).item()


def spoil_random_numbers():
    random.seed(9151)
    np.random.seed(9151)
    torch.manual_seed(9151)


# What a training may do, and how to see it.
CHANGES = {
    "a variable": (
        lambda: os.environ.__setitem__("RUNNER_TEST_OF_STATE", "1"),
        lambda: os.environ.get("RUNNER_TEST_OF_STATE"),
    ),
    "a variable that is gone": (lambda: os.environ.__delitem__("PATH"), lambda: os.environ.get("PATH")),
    "the directory": (lambda: os.chdir("/"), lambda: Path.cwd()),
    "import roots": (lambda: sys.path.insert(0, "/of/a/user"), lambda: list(sys.path)),
    "import roots, another list": (lambda: setattr(sys, "path", ["/alone"]), lambda: list(sys.path)),
    "warnings": (lambda: warnings.simplefilter("ignore"), lambda: list(warnings.filters)),
    "random numbers": (spoil_random_numbers, lambda: torch.get_rng_state().tolist()),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.empty(1).device),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
    ),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    **{
        f"cudnn.{name}": (
            lambda name=name: setattr(torch.backends.cudnn, name, not getattr(torch.backends.cudnn, name)),
            lambda name=name: getattr(torch.backends.cudnn, name),
        )
        for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
    },
}


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """As a session does: restoring looks for garbage, which takes long among all that is imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def state():
    """Also put back where a test fails."""
    found, threads = ProcessState(), torch.get_num_threads()
    yield found
    found.restore()
    assert torch.get_num_threads() == threads


@pytest.mark.filterwarnings("ignore::UserWarning")  # of anomaly mode, that it is slow
@pytest.mark.parametrize(("change", "seen"), CHANGES.values(), ids=CHANGES)
def test_what_was_changed_is_put_back(state, change, seen):
    before = seen()
    change()
    assert seen() != before
    state.restore()
    assert seen() == before


def test_each_training_draws_the_numbers_of_the_first(state):
    first = random_numbers()
    assert random_numbers() != first
    state.restore()
    assert random_numbers() == first
    spoil_random_numbers()
    state.restore()
    assert random_numbers() == first


def test_the_search_path_stays_the_same_list(state):
    """Others hold it."""
    path = sys.path
    sys.path.append("/of/a/user")
    state.restore()
    assert sys.path is path
    assert "/of/a/user" not in path


REGISTERED = {
    "register_module_forward_pre_hook": "_global_forward_pre_hooks",
    "register_module_forward_hook": "_global_forward_hooks",
    "register_module_backward_hook": "_global_backward_hooks",
    "register_module_full_backward_hook": "_global_backward_hooks",
    "register_module_full_backward_pre_hook": "_global_backward_pre_hooks",
    "register_module_buffer_registration_hook": "_global_buffer_registration_hooks",
    "register_module_module_registration_hook": "_global_module_registration_hooks",
    "register_module_parameter_registration_hook": "_global_parameter_registration_hooks",
}


@pytest.mark.parametrize(("register", "hooks"), REGISTERED.items())
def test_hooks_of_all_modules_are_gone(state, register, hooks):
    getattr(module, register)(nothing)
    assert getattr(module, hooks)
    state.restore()
    assert not getattr(module, hooks)


def test_a_hook_with_arguments_that_is_always_called_leaves_no_trace(state):
    module.register_module_forward_hook(nothing, with_kwargs=True, always_call=True)
    assert module._global_forward_hooks_with_kwargs
    assert module._global_forward_hooks_always_called
    state.restore()
    assert not any(getattr(module, name) for name in GLOBAL_HOOKS)


def test_the_next_training_may_choose_the_other_kind_of_backward_hook(state):
    module.register_module_full_backward_hook(nothing)
    with pytest.raises(RuntimeError, match="Cannot use both"):
        module.register_module_backward_hook(nothing)
    state.restore()
    module.register_module_backward_hook(nothing)


def test_torch_has_no_hooks_of_all_modules_but_those_that_are_known():
    known = {name for name in vars(module) if name.startswith("_global_")}
    assert known - {"_global_is_full_backward_hook"} == set(GLOBAL_HOOKS)


def warn():
    warnings.warn("once a training", RuntimeWarning, stacklevel=1)


def test_a_warning_that_one_training_has_shown_is_shown_by_the_next(capsys):
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *rest, **more: print(message)
        warnings.simplefilter("default")
        state = ProcessState()
        warn()
        warn()
        assert capsys.readouterr().out == "once a training\n"
        state.restore()
        warn()
        assert capsys.readouterr().out == "once a training\n"


def test_what_torch_compiled_is_forgotten_only_after_a_training_that_compiled(state, monkeypatch):
    """Asking its compiler imports it, which takes seconds."""
    resets = []
    compiler = types.SimpleNamespace(reset=lambda: resets.append("reset"))
    monkeypatch.setattr(torch, "_dynamo", compiler, raising=False)
    state.restore()
    state.restore(compiled=False)
    assert resets == []
    state.restore(compiled=True)
    assert resets == ["reset"]


def test_a_state_that_nobody_changed_stays_as_it_is(state):
    def all_of_it():
        return [repr(seen()) for _, seen in CHANGES.values()]

    before = all_of_it()
    state.restore()
    assert all_of_it() == before


def test_the_modules_around_the_ranks_import_no_torch():
    """They are in the way of every session's start."""
    code = (
        "import sys, runner.executors.board, runner.executors.session_fit, runner.executors.ray_train\n"
        "print([m for m in ('torch', 'mlflow', 'horovod', 'ray') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
