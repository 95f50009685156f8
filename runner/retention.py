"""Which checkpoints stay: the last ones and the best ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.checkpoint import CheckpointError, committed, delete, read_manifest

VALUE = "value"  # in the manifest: the monitored value of this step, null where none was measured
Manifests = Mapping[Path, Mapping[str, Any]]


def prune(root: Path, keep: int, keep_best: int, maximise: bool, newest: Path | None = None) -> None:
    """Delete all but the last `keep` and the best `keep_best`, by the monitored value in their manifests.

    What comes after `newest`, where that is given, is of a training that was then taken back to an earlier step, and
    goes as well. A checkpoint without a readable manifest counts as none of those that are kept.
    """
    if newest is not None:
        there = committed(root)
        for overtaken in there[there.index(newest) + 1 :]:
            delete(overtaken)
    manifests = _readable(root)
    kept = {*list(manifests)[-keep:], *_ranked(manifests, maximise)[:keep_best]}
    for path in committed(root):
        if path not in kept:
            delete(path)


def best(root: Path, maximise: bool) -> Path | None:
    """The checkpoint with the best monitored value of those that are there; of equal ones the earliest."""
    return next(iter(_ranked(_readable(root), maximise)), None)


def _readable(root: Path) -> Manifests:
    """Checkpoints and their manifests, oldest first, without those whose manifest is gone or damaged."""
    manifests: dict[Path, dict[str, Any]] = {}
    for path in committed(root):
        with suppress(CheckpointError):
            manifests[path] = read_manifest(path)
    return manifests


def _ranked(manifests: Manifests, maximise: bool) -> list[Path]:
    """Those with a monitored value, best first; sorting keeps the order of equal ones."""
    sign = -1 if maximise else 1
    values = {path: manifest.get(VALUE) for path, manifest in manifests.items()}
    measured = {path: sign * value for path, value in values.items() if value is not None}
    return sorted((path for path in measured if not math.isnan(measured[path])), key=measured.__getitem__)
