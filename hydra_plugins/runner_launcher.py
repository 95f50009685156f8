"""Where Hydra looks for plugins: the launcher of a multirun, which checks all jobs before it starts the first one, and the
sweeper, which writes no secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, filter_overrides, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from runner import secrets
from runner.errors import ConfigError, RunnerError
from runner.sweep.check import JobChecks


class CheckedLauncher(BasicLauncher):
    """Hydra's own, one job after another in this process, in two passes. Raises the error of the first job that is refused,
    with its number and overrides."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        assert self.hydra_context is not None  # by setup(), as the others
        assert self.config is not None
        assert self.task_function is not None
        jobs, check = [], JobChecks()
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(composed):
                composed.hydra.job.id = composed.hydra.job.num = number
            HydraConfig.instance().set_config(composed)
            job = composed.copy()
            with flag_override(job, ["readonly", "struct"], False):
                del job["hydra"]
            try:
                check(job)
            except RunnerError as error:
                said = " ".join(filter_overrides(overrides))
                raise type(error)(f"job {number} ({said}): {error}") from error
            jobs.append(composed)
        return [
            run_job(
                hydra_context=self.hydra_context,
                task_function=self.task_function,
                config=composed,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
            for composed in jobs
        ]


class MaskedSweeper(BasicSweeper):
    """Hydra's own; what it writes, multirun.yaml, holds no secret."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        composed = OmegaConf.to_container(config, resolve=False)
        secrets.learn(composed)
        self.config = cast(DictConfig, OmegaConf.create(secrets.masked(composed)))
        assert config.hydra.sweep.dir  # its ${now:…} is from here on that of both
        OmegaConf.copy_cache(config, self.config)

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                key = override.get_key_element()
                raise ConfigError(
                    f"{override.input_line}: a grid needs values, not an interval; type {key}=0.1,0.01"
                )
        return BasicSweeper.split_arguments(overrides, max_batch_size)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """The launcher composes all jobs before the first one starts: once is enough."""


def _register(group: str, name: str, plugin: type, **settings: Any) -> None:
    node = {"_target_": f"{plugin.__module__}.{plugin.__qualname__}", **settings}
    ConfigStore.instance().store(group=f"hydra/{group}", name=name, node=node, provider="runner")


_register("launcher", "checked", CheckedLauncher)
_register("sweeper", "masked", MaskedSweeper, max_batch_size=None, params=None)
