"""Checkpoints that are whole or not there: commit, verify, load, prune.

A checkpoint is a folder `step-00000420/` with `state.pt` (tensors and plain values), `weights.safetensors` and
`manifest.json` (size and sha256 of each file, and where the training stood). It is written as `tmp-…`, synced and
renamed, so a kill at any moment leaves the previous one or the complete new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from runner.errors import RunnerError

SCHEMA_VERSION = 1
STATE, WEIGHTS, MANIFEST = "state.pt", "weights.safetensors", "manifest.json"


class CheckpointError(RunnerError):
    """A checkpoint that cannot be trusted: names the file and what is wrong with it."""


def commit(
    root: Path,
    name: str,
    weights: Mapping[str, Tensor],
    state: dict[str, Any],
    facts: dict[str, Any],
    attachments: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Write checkpoint `name` under `root` atomically and return its folder.

    `weights` is the model's state_dict, `state` whatever else resumes the training (tensors and plain values only),
    `facts` go into the manifest (epoch, step, metrics, …; JSON), `attachments` are further files by name.
    """
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob("tmp-*"):  # of a writer that was killed
        shutil.rmtree(leftover)
    temporary = root / f"tmp-{name}"
    temporary.mkdir()
    copies = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in weights.items()}
    save_file(copies, temporary / WEIGHTS)
    torch.save({"weights": copies, **state}, temporary / STATE)
    for file, content in attachments.items():
        (temporary / file).write_bytes(content)
    files = {file: _describe(temporary / file) for file in (STATE, WEIGHTS, *attachments)}
    manifest = {"schema_version": SCHEMA_VERSION, "files": files, **facts}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True))
    for path in (*(temporary / file for file in (*files, MANIFEST)), temporary):
        _sync(path)
    final = root / name
    if final.exists():  # the same step again, after a resume from an earlier one
        shutil.rmtree(final)
    temporary.rename(final)
    _sync(root)
    return final


def verify(path: Path) -> dict[str, Any]:
    """The manifest, once every file has its recorded size and sha256. Raises CheckpointError."""
    try:
        manifest: dict[str, Any] = json.loads((path / MANIFEST).read_text())
        recorded = dict(manifest["files"])
        version = manifest["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / MANIFEST}: not a readable manifest ({error})") from error
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path / MANIFEST}: schema version {version}, this runner reads {SCHEMA_VERSION}"
        )
    for file in (STATE, WEIGHTS):
        if file not in recorded:
            raise CheckpointError(f"{path / MANIFEST}: does not list {file}")
    for file, expected in recorded.items():
        try:
            found = _describe(path / file)
        except OSError as error:
            raise CheckpointError(f"{path / file}: {error.strerror}") from error
        if found != expected:
            raise CheckpointError(f"{path / file}: {found} does not match the manifest's {expected}")
    return manifest


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(manifest, state) of a verified checkpoint; `state["weights"]` is the model's state_dict. Never unpickles code."""
    manifest = verify(path)
    try:
        state: dict[str, Any] = torch.load(path / STATE, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise CheckpointError(f"{path / STATE}: holds more than tensors and plain values, or none") from error
    return manifest, state


def committed(root: Path) -> list[Path]:
    """Checkpoints under `root`, oldest first; half-written ones are not among them."""
    found = (path for path in root.glob("step-*") if path.is_dir())
    return sorted(found, key=lambda path: (len(path.name), path.name))


def latest(root: Path) -> Path | None:
    """The newest checkpoint that verifies."""
    for path in reversed(committed(root)):
        try:
            verify(path)
        except CheckpointError:
            continue
        return path
    return None


def prune(root: Path, keep: int, best: Path | None) -> None:
    """Delete all but the last `keep` and the best."""
    for path in committed(root)[:-keep]:
        if path != best:
            shutil.rmtree(path)


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes in name order: equal exactly when the weights are bit for bit."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
