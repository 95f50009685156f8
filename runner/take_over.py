"""A training goes on from another one's checkpoint: its weights, optimizer, schedule and position.

Others (Ray) hand on a reference of some hundred bytes; the weights stay where the checkpoint was committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from runner import checkpoint
from runner.checkpoint import SEAL, STATE, WEIGHTS, CheckpointError
from runner.json_file import write_json

REFERENCE = "reference.json"
OF_THE_FILES = ("schema_version", "files", SEAL)  # of a manifest: what `commit` adds to its facts


@dataclass(frozen=True)
class Reference:
    """A checkpoint of job `job` after `epoch` epochs; none where it had diverged by then."""

    job: int
    epoch: int
    path: str | None = None
    sha256: str | None = None  # of its manifest, in which those of its files are

    @classmethod
    def to(cls, path: Path, job: int, epoch: int) -> Reference:
        return cls(job, epoch, str(path), checkpoint.read_manifest(path)[SEAL])

    @classmethod
    def read(cls, folder: Path) -> Reference:
        """Raises CheckpointError."""
        file = folder / REFERENCE
        try:
            return cls(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{file}: not a reference to a checkpoint ({error})") from error

    def write(self, folder: Path) -> None:
        write_json(folder / REFERENCE, asdict(self))

    def load(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(manifest, state) of the checkpoint. Raises CheckpointError where it is another than was meant, or damaged."""
        if self.path is None:
            raise CheckpointError(f"job {self.job} has no checkpoint of epoch {self.epoch}: it had diverged")
        path = Path(self.path)
        if checkpoint.read_manifest(path)[SEAL] != self.sha256:
            raise CheckpointError(
                f"{path}: another checkpoint than was meant, its {SEAL} is not {self.sha256}"
            )
        return checkpoint.load(path)


def take_over(source: Reference, root: Path, facts: Mapping[str, Any]) -> Path:
    """Commit the source's checkpoint under `root` as the newest one, and return it; `facts` replace some of its manifest.

    What was measured until then stays this training's own; which value is the best so far is the source's, as it belongs to
    the weights. Own checkpoints of later steps are deleted. Raises CheckpointError.
    """
    manifest, state = source.load()
    own = checkpoint.load_latest(root)
    weights = state.pop("weights")
    state["history"] = _until(
        own[2]["history"] if own else torch.empty(0, dtype=torch.uint8), manifest["step"]
    )
    path = Path(str(source.path))
    others = [name for name in manifest["files"] if name not in (STATE, WEIGHTS)]
    attachments = {name: (path / name).read_bytes() for name in others}
    kept = {key: value for key, value in manifest.items() if key not in OF_THE_FILES}
    taken = checkpoint.commit(root, path.name, weights, state, {**kept, **facts}, attachments)
    there = checkpoint.committed(root)
    for later in there[there.index(taken) + 1 :]:
        checkpoint.delete(later)
    return taken


def _until(history: torch.Tensor, step: int) -> torch.Tensor:
    """Its lines up to a step; see saving.Training.history."""
    lines = [line for line in history.numpy().tobytes().split(b"\n") if line]
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    return torch.frombuffer(bytearray(b"\n".join(kept) or b"\n"), dtype=torch.uint8)
