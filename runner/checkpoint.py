"""Checkpoints that are whole or not there: commit, verify, load, delete.

A checkpoint is a folder `step-00000420/` with `weights.safetensors` (the model), `state.pt` (all else that resumes the
training: tensors and plain values), attachments, and `manifest.json` (size and sha256 of each file, where the training
stood, and a sha256 of the manifest itself). It is written as `tmp-…`, synced and renamed, so a kill at any moment
leaves the previous one or the complete new one. It is deleted the other way round.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save_file
from torch import Tensor

from runner.errors import RunnerError

SCHEMA_VERSION = 3
STATE, WEIGHTS, MANIFEST = "state.pt", "weights.safetensors", "manifest.json"
SEAL = "sha256"  # of the manifest without this key
TEMPORARY = "tmp-"
# Bytes on the disk besides a tensor's own, and besides all tensors and attachments: manifest, plain values, blocks.
TENSOR_SLACK, SLACK = 2**10, 2**16
Found = TypeVar("Found")


class CheckpointError(RunnerError):
    """A checkpoint that cannot be trusted or written: names the file and what is wrong with it."""


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

    Raises CheckpointError when the disk is full, or whatever else it answers; what was committed before stays.
    """
    temporary, final = root / f"{TEMPORARY}{name}", root / name
    needed = SLACK + _bytes_of([weights, state, attachments])
    try:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{TEMPORARY}*"):  # of a writer that was killed
            shutil.rmtree(leftover)
        disk = shutil.disk_usage(root)
        if disk.total and disk.free < needed:  # some file systems do not say
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary.mkdir()
        _write(temporary, weights, state, facts, attachments)
        if final.exists():  # the same step again, after a resume from an earlier one
            delete(final)
        temporary.rename(final)
        _sync(root)
    # torch and safetensors have errors of their own for a full disk
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(_unwritten(final, error, needed)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, whole, but with its files not looked at. Raises CheckpointError."""
    file = path / MANIFEST
    try:
        content = file.read_bytes()
        manifest: dict[str, Any] = json.loads(content)
        version = manifest["schema_version"]
        recorded = {name: (each["bytes"], each["sha256"]) for name, each in dict(manifest["files"]).items()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a readable manifest ({error})") from error
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{file}: another version of runner wrote it (schema {version}, this one reads {SCHEMA_VERSION})"
        )
    if content != _sealed({key: value for key, value in manifest.items() if key != SEAL}):
        raise CheckpointError(f"{file}: not what was written, its {SEAL} is another")
    for name in (STATE, WEIGHTS):
        if name not in recorded:
            raise CheckpointError(f"{file}: does not list {name}")
    for name in recorded:
        if Path(name).name != name:
            raise CheckpointError(f"{file}: lists {name}, which is not in this folder")
    return manifest


def verify(path: Path) -> dict[str, Any]:
    """The manifest, once every file has its recorded size and sha256. Raises CheckpointError."""
    manifest = read_manifest(path)
    for name, written in manifest["files"].items():
        _check(path / name, written, _sha256)
    return manifest


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(manifest, state) of a checkpoint; `state["weights"]` is the model's state_dict. Never unpickles code.

    Each file is read once: the bytes that were verified are those that are loaded. Raises CheckpointError.
    """
    manifest = read_manifest(path)
    contents: dict[str, bytes] = {}

    def sha256(file: Path) -> str:
        contents[file.name] = file.read_bytes()
        return hashlib.sha256(contents[file.name]).hexdigest()

    for name, written in manifest["files"].items():
        _check(path / name, written, sha256)
    try:
        weights = tensors_of(contents.pop(WEIGHTS))
    except SafetensorError as error:
        raise CheckpointError(f"{path / WEIGHTS}: not a .safetensors file ({error})") from error
    try:
        state = torch.load(io.BytesIO(contents.pop(STATE)), map_location="cpu", weights_only=True)
    except Exception as error:  # a file with something else in it makes torch raise anything
        raise CheckpointError(f"{path / STATE}: holds more than tensors and plain values, or none") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path / STATE}: holds a {type(state).__name__}, a dict is needed")
    return manifest, {**state, "weights": weights}


def committed(root: Path) -> list[Path]:
    """Checkpoints under `root`, oldest first; half-written ones are not among them."""
    found = (path for path in root.glob("step-*") if path.is_dir())
    return sorted(found, key=lambda path: (len(path.name), path.name))


def latest(root: Path, warn: Callable[[str], None] = lambda line: None) -> Path | None:
    """The newest checkpoint that verifies; `warn` gets a line about each newer one, which does not."""
    found = _newest(root, warn, verify)
    return found and found[0]


def load_latest(
    root: Path, warn: Callable[[str], None] = lambda line: None
) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """(path, manifest, state) of the newest checkpoint that loads, each file read once; `warn` as for `latest`."""
    found = _newest(root, warn, load)
    return found and (found[0], *found[1])


def delete(path: Path) -> None:
    """Delete a checkpoint. It loses its name first: a kill in the middle leaves no half one under it."""
    aside = path.with_name(f"{TEMPORARY}deleted-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)  # what is left is the next commit's to remove


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes in name order: equal exactly when the weights are bit for bit."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write(
    folder: Path,
    weights: Mapping[str, Tensor],
    state: dict[str, Any],
    facts: dict[str, Any],
    attachments: Mapping[str, bytes],
) -> None:
    """All files of a checkpoint, and on the disk when this returns."""
    save_file(apart(weights), folder / WEIGHTS)
    with (folder / STATE).open("wb") as file:  # by name, torch would hide which error the disk gave
        torch.save(state, file)
    for name, content in attachments.items():
        (folder / name).write_bytes(content)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _sha256(folder / name)}
        for name in (STATE, WEIGHTS, *attachments)
    }
    manifest = {"schema_version": SCHEMA_VERSION, "files": files, **facts}
    (folder / MANIFEST).write_bytes(_sealed(manifest))
    for path in (*(folder / name for name in (*files, MANIFEST)), folder):
        _sync(path)


def apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights as safetensors takes them: on the CPU, contiguous, none sharing memory with another."""
    taken: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage().data_ptr()
        apart[name] = own.clone() if memory in taken else own
        taken.add(memory)
    return apart


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest's file. Only these very bytes are taken for it: JSON has several ways to write a value."""
    text = json.dumps(manifest, indent=2)
    return json.dumps({**manifest, SEAL: hashlib.sha256(text.encode()).hexdigest()}, indent=2).encode()


def _newest(
    root: Path, warn: Callable[[str], None], read: Callable[[Path], Found]
) -> tuple[Path, Found] | None:
    rejected: list[str] = []
    found = None
    for path in reversed(committed(root)):
        try:
            found = path, read(path)
        except CheckpointError as error:
            rejected.append(str(error))
        else:
            break
    instead = f"falling back to {found[0].name}" if found else "and there is none to fall back to"
    for line in rejected:
        warn(f"warning: {line}; {instead}")
    return found


def _check(path: Path, written: Mapping[str, Any], sha256: Callable[[Path], str]) -> None:
    try:
        size = path.stat().st_size
        if size != written["bytes"]:
            raise CheckpointError(f"{path}: {size} bytes, {written['bytes']} were written")
        if sha256(path) != written["sha256"]:
            raise CheckpointError(f"{path}: not what was written, its sha256 is another")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes_of(values: Iterable[Any]) -> int:
    """Bytes that the tensors and files among nested values take on a disk, rather too many than too few."""
    total = 0
    for value in values:
        if isinstance(value, Tensor):
            total += value.nbytes + TENSOR_SLACK
        elif isinstance(value, bytes):
            total += len(value)
        elif isinstance(value, Mapping):
            total += _bytes_of(value.values())
        elif isinstance(value, (list, tuple)):
            total += _bytes_of(value)
    return total


def _unwritten(path: Path, error: BaseException, needed: int) -> str:
    """What to say about a checkpoint that could not be written."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__  # torch raises an error of its own on top of the disk's
    reason = cause.strerror if cause else str(error).partition("\n")[0]
    there = next(folder for folder in path.parents if folder.is_dir())
    return (
        f"{path}: {reason}: the checkpoint needs {needed} bytes, {shutil.disk_usage(there).free} are free; "
        "free some space, or type checkpoint.keep=2, or hydra.run.dir=… on another disk"
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
