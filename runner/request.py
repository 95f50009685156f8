"""One job, as Hydra composed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from runner import config
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
