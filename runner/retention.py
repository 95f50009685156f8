"""Which checkpoints stay: the last ones and the best ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from runner.checkpoint import MANIFEST, CheckpointError, committed, delete, read_manifest

VALUE = "value"  # in the manifest: the monitored value of this step, null where none was measured
Manifests = Mapping[Path, Mapping[str, Any]]


def prune(
    root: Path,
    keep: int,
    keep_best: int,
    maximise: bool,
    newest: Path | None = None,
    pinned: str | None = None,
) -> None:
    """Delete all but the last `keep`, the best `keep_best`, by the monitored value in their manifests, and the one of the name
    `pinned`.

    What comes after `newest`, where that is given, is of a training that was then taken back to an earlier step, and
    goes as well. A checkpoint without a readable manifest counts as none of those that are kept.
    """
    there = committed(root)
    end = len(there) if newest is None else there.index(newest) + 1
    manifests = _readable(there[:end])
    kept = {*list(manifests)[-keep:], *_ranked(manifests, maximise)[:keep_best]}
    for path in reversed(there):  # what was overtaken first: it would be taken for the newest
        if path not in kept and path.name != pinned:
            delete(path)


def best(root: Path, maximise: bool) -> Path | None:
    """The checkpoint with the best monitored value of those that are there; of equal ones the earliest."""
    return next(iter(_ranked(_readable(committed(root)), maximise)), None)


def _readable(checkpoints: Iterable[Path]) -> Manifests:
    """Their manifests, without those whose manifest is gone or damaged."""
    manifests: dict[Path, dict[str, Any]] = {}
    for path in checkpoints:
        with suppress(CheckpointError, FileNotFoundError):
            file = (path / MANIFEST).stat()
            manifests[path] = _manifest(path, file.st_ino, file.st_mtime_ns, file.st_size)
    return manifests


@lru_cache(maxsize=128)
def _manifest(path: Path, inode: int, modified: int, size: int) -> dict[str, Any]:
    """Read once as long as its file is the same: a commit prunes each time, and reading costs the training its GIL."""
    return read_manifest(path)


def _ranked(manifests: Manifests, maximise: bool) -> list[Path]:
    """Those with a monitored value, best first; sorting keeps the order of equal ones."""
    sign = -1 if maximise else 1
    values = {path: manifest.get(VALUE) for path, manifest in manifests.items()}
    measured = {path: sign * value for path, value in values.items() if value is not None}
    return sorted((path for path in measured if not math.isnan(measured[path])), key=measured.__getitem__)
