"""The config of each job of a sweep, as Hydra composes it, in a tenth of the time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict


class Composer:
    """Jobs that select the same options of config groups are composed once; what else their overrides change is put into
    a copy by Hydra's own function. Where that could differ (`+key=…`, `~key`, `hydra.…`) a job is composed from the start.
    """

    def __init__(self, loader: Any, config: DictConfig) -> None:
        """Hydra's ConfigLoader, and the config that it has composed of the command line."""
        self._loader, self._config = loader, config
        self._parser = OverridesParser.create()
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, overrides: Sequence[str], number: int, folder: Path) -> DictConfig:
        """The whole config of a job of the sweep in `folder`, with its `hydra` node."""
        parsed = self._parser.parse_overrides(overrides=list(overrides))
        groups = [each for each in parsed if self._loader.repository.group_exists(each.key_or_group)]
        values = [each for each in parsed if each not in groups]
        if all(_is_plain(each) for each in parsed):
            composed = self._changed(tuple(str(each.input_line) for each in groups), values, parsed)
        else:
            composed = self._loader.load_sweep_config(self._config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.id = composed.hydra.job.num = number
            composed.hydra.runtime.output_dir = str(folder / str(composed.hydra.sweep.subdir))
        return composed

    def _changed(
        self, groups: tuple[str, ...], values: list[Override], overrides: list[Override]
    ) -> DictConfig:
        if groups not in self._composed:
            self._composed[groups] = self._loader.load_sweep_config(self._config, list(groups))
        composed = self._composed[groups].copy()
        OmegaConf.copy_cache(from_config=self._config, to_config=composed)
        ConfigLoaderImpl._apply_overrides_to_config(values, composed)
        job = composed.hydra.job
        settings = job.config.override_dirname
        with flag_override(composed, ["readonly", "struct"], False):
            composed.hydra.overrides.task = [each.input_line for each in overrides]
            job.override_dirname = get_overrides_dirname(
                overrides,
                exclude_keys=list(settings.exclude_keys),
                item_sep=settings.item_sep,
                kv_sep=settings.kv_sep,
            )
        return composed


def without_hydra(composed: DictConfig) -> DictConfig:
    """What a job's config is without the `hydra` node."""
    job = composed.copy()
    with flag_override(job, ["readonly", "struct"], False):
        del job["hydra"]
    return job


def _is_plain(override: Override) -> bool:
    is_hydra = (override.key_or_group or "").split(".")[0].split("/")[0] == "hydra"
    return override.type is OverrideType.CHANGE and override.package is None and not is_hydra
