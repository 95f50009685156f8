"""Where Hydra looks for plugins: the launcher of a multirun, which runs its jobs on warm sessions, and the sweeper, which says
which jobs there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from runner import secrets
from runner.errors import ConfigError
from runner.schema import Experiment, Mode
from runner.sweep.compose import Composer
from runner.sweep.source import Listed, Source, Trial
from runner.sweep.space import space
from runner.sweep_schema import Method

OpenSource = Callable[[Experiment, Sequence[Trial]], Source]


class WarmLauncher(Launcher):
    """Jobs share live workers (runner/sweep/sweep.py). Its jobs' return value is the best of checkpoint.monitor, for sweepers that
    optimise it."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._jobs: Any = task_function  # runner's own, see __main__.py
        self._config, self._loader = config, hydra_context.config_loader

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """A batch of any sweeper."""
        typed = [" ".join(overrides) for overrides in job_overrides]
        first = job_overrides[0]
        common = [each for each in first if all(each in overrides for overrides in job_overrides)]
        results = self.sweep(
            typed, first, common, lambda settings, earlier: Listed(job_overrides, initial_job_idx)
        )
        returned = []
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            done = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
            done.return_value = results.get(number)
            returned.append(done)
        return returned

    def sweep(
        self,
        typed: Sequence[str],
        first: Sequence[str],
        common: Sequence[str],
        open_source: OpenSource,
    ) -> dict[int, float | None]:
        """Run the jobs of `open_source`; `first` stands for all of them, `common` are the overrides that all have. The monitored values by number."""
        setup_globals()
        OmegaConf.set_readonly(self._config, False)
        yaml = OmegaConf.to_yaml(OmegaConf.create(secrets.masked(OmegaConf.to_container(self._config))))
        compose = Composer(self._loader, self._config)

        def composed(overrides: Sequence[str], number: int, folder: Path) -> DictConfig:
            job = compose(overrides, number, folder)
            HydraConfig.instance().set_config(job)
            return job

        folder = Path(self._config.hydra.sweep.dir).absolute()
        found = self._jobs.sweep(composed, folder, typed, first, common, open_source, yaml)
        return cast(dict[int, float | None], found)


class RunnerSweeper(BasicSweeper):
    """A grid, as Hydra's own sweeper, or what `search=` selects; writes no secrets."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        composed = OmegaConf.to_container(config, resolve=False)
        secrets.learn(composed)
        self.config = cast(DictConfig, OmegaConf.create(secrets.masked(composed)))
        assert config.hydra.sweep.dir  # its ${now:…} is from here on that of both
        OmegaConf.copy_cache(config, self.config)

    def sweep(self, arguments: list[str]) -> Any:
        if not isinstance(self.launcher, WarmLauncher):
            return super().sweep(arguments)
        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        typed = [*self._parse_config(), *arguments]
        overrides = parser.parse_overrides(typed)

        def open_source(settings: Experiment, earlier: Sequence[Trial]) -> Source:
            if settings.search.method is Method.grid:
                (jobs,) = self.split_arguments(overrides, None)
                return Listed(jobs)
            if settings.search.method is Method.pbt:
                from runner.sweep.members import open_population

                return open_population(settings, overrides)
            from runner.sweep.search import open_search

            maximise = settings.checkpoint.mode is Mode.max
            return open_search(settings.search, overrides, maximise, earlier)

        found = space(overrides)
        common = [f"{key}={text}" for key, text in found.fixed.items()]
        return self.launcher.sweep(typed, found.first(), common, open_source)

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> list[list[list[str]]]:
        for override in overrides:
            if override.is_sweep_override() and not override.is_discrete_sweep():
                key = override.get_key_element()
                raise ConfigError(
                    f"{override.input_line}: a grid needs values, not an interval; type {key}=0.1,0.01, or search=tpe"
                )
        return BasicSweeper.split_arguments(overrides, max_batch_size)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """All jobs are composed before the first one starts: once is enough."""


def _register(group: str, name: str, plugin: type, **settings: Any) -> None:
    node = {"_target_": f"{plugin.__module__}.{plugin.__qualname__}", **settings}
    ConfigStore.instance().store(group=f"hydra/{group}", name=name, node=node, provider="runner")


_register("launcher", "warm", WarmLauncher)
_register("sweeper", "runner", RunnerSweeper, max_batch_size=None, params=None)
