"""What a training changes of its process, and what puts it back, so that the next one starts as in a fresh process."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from pathlib import Path

import torch

from runner.plan import Plan
from runner.rank_state import random_state, set_random_state
from runner.schema import Experiment

GLOBAL_HOOKS = (  # of torch.nn.modules.module: what register_module_…_hook adds to, for all modules
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
CUDNN = ("allow_tf32", "benchmark", "deterministic", "enabled")  # of torch.backends.cudnn


def settle(experiment: Experiment, plan: Plan) -> None:
    """Threads, determinism and random numbers, before anything is built."""
    torch.set_num_threads(plan.resources.threads)  # Ray sets OMP_NUM_THREADS, which torch has read by now
    if experiment.trainer.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(experiment.trainer.deterministic)
    torch.backends.cudnn.benchmark = not experiment.trainer.deterministic
    torch.manual_seed(experiment.seed)  # the same on all ranks while the model is built


class ProcessState:
    """As it is now; `restore` brings it back. What a user's module keeps in variables of its own stays as it is."""

    def __init__(self) -> None:
        self._environment, self._folder, self._path = dict(os.environ), Path.cwd(), list(sys.path)
        self._filters = list(warnings.filters)
        self._random = random_state()
        self._dtype, self._device = torch.get_default_dtype(), torch.get_default_device()
        self._threads, self._matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
        self._cudnn = {name: getattr(torch.backends.cudnn, name) for name in CUDNN}

    def restore(self, compiled: bool = False) -> None:
        """`compiled`: torch.compile was used."""
        os.environ.clear()
        os.environ.update(self._environment)
        os.chdir(self._folder)
        sys.path[:] = self._path
        warnings.resetwarnings()  # also forgets what was shown once
        warnings.filters[:] = self._filters  # type: ignore[index]
        for name in GLOBAL_HOOKS:
            getattr(torch.nn.modules.module, name, {}).clear()
        torch.nn.modules.module._global_is_full_backward_hook = None  # or the other kind would be refused
        torch.set_default_dtype(self._dtype)
        torch.set_default_device(None if self._device == torch.device("cpu") else self._device)
        torch.set_num_threads(self._threads)
        torch.set_float32_matmul_precision(self._matmul)
        torch.use_deterministic_algorithms(False)
        for name, value in self._cudnn.items():
            setattr(torch.backends.cudnn, name, value)
        torch.autograd.set_detect_anomaly(False)
        torch.set_grad_enabled(True)
        if compiled:
            torch._dynamo.reset()
        gc.collect()
        gc.freeze()  # what is left is imported modules, mostly: to look through them takes a fifth of a second a job
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        set_random_state(self._random)
