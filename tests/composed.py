"""The project's own conf/, composed as the command line would."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from runner import config
from runner.schema import Experiment

CONF = Path(__file__).resolve().parents[1] / "conf"
config.register_schema()


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra_compose("config", overrides=list(overrides))


def load(*overrides: str) -> Experiment:
    return config.load(compose(overrides))
