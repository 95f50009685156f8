"""When a training writes checkpoints, what is in them, and how it goes on from one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from runner import checkpoint, rank_state, schema
from runner.checkpoint import CheckpointError
from runner.communicator import Communicator
from runner.errors import TrainingError
from runner.learner import Learner
from runner.plan import Plan, Position
from runner.snapshot import Snapshot, copy_of
from runner.tracking import Measured
from runner.train_state import Metrics, NewLR, Stretch, TrainState

FINAL = "final.safetensors"  # in a run's folder: the weights of a model that is not stored yet
LOOK_SECONDS = 1.0  # between two looks at rank 0's clock
EPOCH_SEED = 0x9E3779B1  # a stride between the seeds of steps, where ranks get new random numbers


@dataclass
class Training:
    """All that a checkpoint holds. `state`, `history` and `best` are equal on all ranks."""

    plan: Plan
    learner: Learner
    state: TrainState = field(default_factory=TrainState)
    stretch: Stretch = field(default_factory=Stretch)
    history: list[bytes] = field(default_factory=list)  # a JSON line a report, in which NaN survives
    best: Metrics = field(default_factory=dict)  # all metrics of the best validation

    def add(self, metrics: Metrics, lrs: Iterable[NewLR] = ()) -> list[Measured]:
        """Keep what was measured just now, and each change of the LR until then."""
        added = [Measured(step, milliseconds, {"lr": lr}) for step, milliseconds, lr in lrs]
        if metrics:
            added.append(Measured(self.state.step, int(time.time() * 1000), metrics))
        self.history += [json.dumps(vars(each)).encode() for each in added]
        return added

    def measured(self) -> list[Measured]:
        """Everything since the first step."""
        return [Measured(**json.loads(line)) for line in self.history]

    def reports(self) -> list[Metrics]:
        """The metrics of every epoch and validation since the first step."""
        return [each.metrics for each in self.measured() if "epoch" in each.metrics]


class Due:
    """Whether a checkpoint is due, asked after every step; the same answer on all ranks.

    Minutes are rank 0's: about once a second the ranks learn what its clock says, and at which step to ask again.
    """

    def __init__(
        self,
        settings: schema.Checkpoint,
        communicator: Communicator,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._communicator, self._clock = settings, communicator, clock
        self._written = self._looked = clock()
        self._looked_at: int | None = (
            None  # a step; none yet: the first may be any, in a training that goes on
        )
        self._look_at = 0

    def __call__(self, state: TrainState) -> bool:
        settings = self._settings
        if not settings.enabled:
            return False
        is_due = state.stopped or state.ended
        if settings.every_steps is not None:
            is_due |= state.step % settings.every_steps == 0
        if settings.every_epochs is not None and state.rows == 0:
            is_due |= state.epoch % settings.every_epochs == 0
        if settings.every_minutes is not None and state.step >= self._look_at:
            is_due |= self._by_clock(state.step, 60 * settings.every_minutes)
        if is_due:
            self._written = self._clock()
        return is_due

    def _by_clock(self, step: int, seconds: float) -> bool:
        now = self._clock()
        done = 1 if self._looked_at is None else step - self._looked_at
        ahead = math.ceil(done / max(now - self._looked, 1e-6) * LOOK_SECONDS)
        mine = torch.tensor([int(now - self._written >= seconds), ahead])
        is_due, ahead = self._communicator.allgather(mine)[0].tolist()
        self._looked, self._looked_at, self._look_at = now, step, step + ahead
        return bool(is_due)


Found = tuple[str, dict[str, Any]]  # (name, all that is in it) of what a training goes on from


def snapshot(
    training: Training,
    communicator: Communicator,
    facts: dict[str, Any],
    attachments: dict[str, bytes],
    on_all: bool = False,
) -> Snapshot | None:
    """A copy of all that resumes the training, on rank 0 or `on_all`; None on the others. Collective."""
    state, stretch, learner = training.state, training.stretch, training.learner
    mine = {
        "random": rank_state.random_state(),
        "stretch": _kept(stretch, communicator),
        **learner.rank_state(),
    }
    ranks = rank_state.gather(communicator, mine)
    if communicator.rank != 0 and not on_all:
        return None
    facts = {
        **facts,
        "epoch": state.epoch,
        "step": state.step,
        "rows": state.rows,
        "progress": state.progress,
        "best": state.best,
        "stale": state.stale,
        "num_workers": communicator.size,
        "global_batch_size": training.plan.global_batch_size,
    }
    everything = {
        **learner.state_dict(),
        "train_state": asdict(state),
        "best": training.best,
        "ranks": ranks,
        "history": torch.frombuffer(bytearray(b"\n".join(training.history) or b"\n"), dtype=torch.uint8),
    }
    return copy_of(Snapshot(f"step-{state.step:08d}", learner.weights(), everything, facts, attachments))


def resume(
    training: Training,
    root: Path,
    communicator: Communicator,
    seed: int,
    fetch: Callable[[], Iterable[Path]] = tuple,
    held: Found | None = None,
) -> str | None:
    """Put `training` where the newest sound checkpoint under `root` was written, and return its name; None where there is
    none. Rank 0 reads it, or the first of `fetch` that is sound where the folder has none; the others receive it.
    Collective, unless all ranks have what they go on from: `held`.

    Raises CheckpointError where all are damaged, or the newest is of another model.
    """
    found = held
    if held is None:
        found = communicator.broadcast(_newest(root, fetch) if communicator.rank == 0 else None)
    if found is None:
        return None
    name, saved = found
    _resume_state(training, saved["train_state"], root / name)
    training.best = saved["best"]
    training.history[:] = [line for line in saved["history"].numpy().tobytes().split(b"\n") if line]
    try:
        training.learner.resume(
            saved["weights"], saved, training.state.progress + training.plan.schedule_offset
        )
    except (RuntimeError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{root / name}: is of another model or optimizer ({reason})") from error
    ranks = [rank_state.unpacked(each) for each in saved["ranks"]]
    if len(ranks) == communicator.size:
        mine = ranks[communicator.rank]
        _restore(training.stretch, mine["stretch"], communicator)
        training.learner.resume_rank(mine)
        rank_state.set_random_state(mine["random"])
    else:
        stretches = [rank["stretch"] for rank in ranks]
        _restore(training.stretch, _merged(stretches, communicator.rank), communicator)
        training.learner.resume_rank({"buffers": ranks[0]["buffers"], "objective": {}})
        torch.manual_seed(seed + 1 + communicator.rank + EPOCH_SEED * training.state.step)
    return name


def _resume_state(training: Training, saved: dict[str, Any], path: Path) -> None:
    state, plan = training.state, training.plan
    vars(state).update(saved)
    if plan.offset_at(Position(state.epoch, state.step, state.rows)) != plan.schedule_offset:
        raise CheckpointError(
            f"{path}: lies before the number of workers changed, the plan was made for a later one; resume the run"
        )
    if state.rows and not plan.steps_left(state.rows):  # too few rows for a batch of today's size
        state.epoch, state.rows = state.epoch + 1, 0
    # More patience than before goes on where less had stopped.
    state.stopped = plan.goal.patience is not None and state.stale >= plan.goal.patience


def agree(model: nn.Module, evaluated: nn.Module, communicator: Communicator) -> str:
    """The evaluated weights' sha256 (rank 0's); raises TrainingError when the ranks' parameters differ."""
    parameters = checkpoint.weights_sha256(dict(model.named_parameters()))
    digests = communicator.allgather(torch.tensor(list(bytes.fromhex(parameters))))
    if not (digests == digests[0]).all():
        raise TrainingError(
            "the ranks ended with different weights: is a parameter changed outside the optimizer?"
        )
    return checkpoint.weights_sha256(evaluated.state_dict())


def write_final(evaluated: nn.Module, folder: Path) -> None:
    """The weights as `read_final` gives them to a model of the same kind."""
    save_file(checkpoint.apart(evaluated.state_dict()), folder / FINAL)


def read_final(model: nn.Module, folder: Path) -> None:
    model.load_state_dict(load_file(folder / FINAL))
    (folder / FINAL).unlink()


def _newest(root: Path, fetch: Callable[[], Iterable[Path]]) -> Found | None:
    """The checkpoint to go on from."""
    found = checkpoint.load_latest(root, warn=print)
    if found is not None:
        return found[0].name, found[2]
    if checkpoint.committed(root):
        raise CheckpointError(f"{root}: none of its checkpoints is whole; the lines above say why")
    for candidate in fetch():
        try:
            return candidate.name, checkpoint.load(candidate)[1]
        except CheckpointError as error:
            print(error)
    return None


def _kept(stretch: Stretch, communicator: Communicator) -> dict[str, Any]:
    """Times as they are now, so that they go on elsewhere."""
    now = stretch.seconds + time.perf_counter() - stretch.started
    kept = {**vars(stretch), "seconds": now, "waited": stretch.waited + communicator.waited}
    del kept["started"]
    return kept


def _restore(stretch: Stretch, kept: dict[str, Any], communicator: Communicator) -> None:
    vars(stretch).update(
        {**kept, "waited": kept["waited"] - communicator.waited, "started": time.perf_counter()}
    )


def _merged(kept: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """The sums of ranks of another number: rank 0 goes on with all of them."""
    total: Tensor = sum(each["loss"].cpu() for each in kept)
    return {**kept[0], "loss": total if rank == 0 else torch.zeros_like(total)}
