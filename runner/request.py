"""One job, as Hydra composed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from runner import config
from runner.errors import refuse
from runner.identity import fingerprint
from runner.run_folder import RunFile
from runner.schema import Experiment


@dataclass(frozen=True)
class Request:
    experiment: Experiment
    yaml: str  # interpolations unresolved
    values: dict[str, Any]  # interpolations resolved
    overrides: tuple[str, ...]
    run_dir: Path
    outputs: Path
    import_roots: tuple[str, ...]
    fingerprint: str
    parent_run_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)  # of a job of a sweep
    resumes: RunFile | None = None  # the run in run_dir, which goes on

    @classmethod
    def of(
        cls,
        composed: DictConfig,
        overrides: tuple[str, ...],
        run_dir: Path,
        import_roots: tuple[str, ...],
        resumes: RunFile | None = None,
    ) -> Request:
        """Raises ConfigError. `overrides` hold no secrets."""
        composed = with_workers_of_hosts(composed, overrides)
        experiment, values = config.load(composed), config.to_container(composed)
        return cls(
            experiment=experiment,
            yaml=config.to_yaml(composed),
            values=values,
            overrides=overrides,
            run_dir=run_dir,
            outputs=Path.cwd() / "outputs",
            import_roots=import_roots,
            fingerprint=fingerprint(values),
            resumes=resumes,
        )


def with_workers_of_hosts(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """With the `scaling.num_workers` that so many hosts of as many workers make. Raises ConfigError where another was typed."""
    hosts = OmegaConf.select(composed, "executor.num_hosts")
    each = OmegaConf.select(composed, "executor.num_workers_per_host") or 1
    if not (isinstance(hosts, int) and isinstance(each, int) and hosts > 0 and each > 0):
        return composed  # none, or the config is refused as a whole
    key, given = "scaling.num_workers", OmegaConf.select(composed, "scaling.num_workers")
    is_typed = any(override.lstrip("+").partition("=")[0] == key for override in overrides)
    if is_typed and given != hosts * each:
        why = f"executor.num_hosts={hosts} × executor.num_workers_per_host={each} are {hosts * each}"
        raise refuse(key, given, why, f"{key}={hosts * each}, or leave it out")
    changed = composed.copy()
    OmegaConf.update(changed, key, hosts * each)
    return changed
