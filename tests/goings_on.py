"""Real trainings, on ranks in lockstep: begun, copied at every step, and gone on with in fresh objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from runner import checkpoint, rank_state
from runner.ingest.batches import Ingest, placement
from runner.ingest.rows import Arrays
from runner.ingest.tensors import TensorIngest
from runner.learner import build_learner
from runner.loop import fit, restart
from runner.plan import START, DataFacts, Plan, Position, make_plan
from runner.resources import ResourcePlan
from runner.saving import Due, Training, resume, snapshot
from runner.snapshot import Snapshot
from tests.fakes import make_experiment, without_times
from tests.lockstep import in_lockstep

COLUMNS, VAL_ROWS, SEED = 4, 5, 3


class Normed(nn.Module):
    """Its batch norm's statistics differ between ranks, which see different rows."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, 3), nn.BatchNorm1d(3), nn.Linear(3, out_features))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


@dataclasses.dataclass(frozen=True)
class Case:
    """A training's settings, at a number of workers, from where it stands."""

    settings: dict[str, Any]
    workers: int = 1
    rows: int = 32
    position: Position = START
    damaged: int | None = None  # a row with a number that is not finite
    watch: Callable[[Ingest], Ingest] = lambda ingest: ingest  # what a rank reads through

    def with_settings(self, **settings: Any) -> Case:
        """Keys with `__` for a dot."""
        more = {key.replace("__", "."): value for key, value in settings.items()}
        return dataclasses.replace(self, settings={**self.settings, **more})

    @property
    def experiment(self) -> Any:
        return make_experiment({"seed": SEED, "scaling.num_workers": self.workers, **self.settings})

    @property
    def data(self) -> DataFacts:
        return DataFacts(self.rows, VAL_ROWS, (COLUMNS,), 1)

    @property
    def plan(self) -> Plan:
        return make_plan(self.experiment, self.data, ResourcePlan(self.workers, 1.0, 0.0), self.position)

    def splits(self) -> dict[str, Arrays]:
        """The first column of the inputs is a hundredth of the row's number."""
        draws, splits = np.random.default_rng(5), {}
        for name, rows in (("train", self.rows), ("val", VAL_ROWS)):
            inputs = draws.standard_normal((rows, COLUMNS)).astype(np.float32)
            targets = inputs[:, 1:2] - 2 * inputs[:, 2:3] + draws.standard_normal((rows, 1))
            inputs[:, 0] = np.arange(rows) / 100
            if name == "train" and self.damaged is not None:
                inputs[self.damaged, 1] = np.inf
            splits[name] = Arrays(inputs, targets.astype(np.float32))
        return splits

    def begin(self, communicator: Any) -> tuple[Training, Ingest]:
        """All objects of a rank, anew."""
        experiment, plan = self.experiment, self.plan
        torch.manual_seed(SEED)
        place = placement(experiment, torch.device("cpu"))
        learner = build_learner(experiment, plan, self.data, communicator, place.device)
        ingest = TensorIngest(self.splits(), plan, SEED, communicator.rank, place)
        training = Training(plan, learner)
        restart(training.stretch, communicator)
        return training, self.watch(ingest)

    def go(self, training: Training, ingest: Ingest, communicator: Any) -> list[Snapshot | None]:
        """Train to the end, as the worker does; a snapshot of each moment at which one is due."""
        due = Due(self.experiment.checkpoint, communicator)
        state, found = training.state, []
        for metrics, is_due, lrs in fit(
            state, training.stretch, training.plan, training.learner, ingest, communicator, due
        ):
            if metrics:
                training.best = metrics if state.best_step == state.step else training.best
            training.add(metrics, lrs)
            if is_due:
                found.append(snapshot(training, communicator, {"data": self.data.identity()}, {}))
        return found

    def trained(self) -> tuple[list[Any], list[Snapshot]]:
        """(each rank's end, rank 0's snapshots) of a training from its first step."""

        def rank(communicator: Any) -> Any:
            training, ingest = self.begin(communicator)
            found = self.go(training, ingest, communicator)
            return end(training), found

        ranks = in_lockstep(self.workers, rank)
        return [ended for ended, _ in ranks], ranks[0][1]

    def resumed(self, root: Path) -> list[Any]:
        """Each rank's end of a training that goes on from what is under `root`, which rank 0 alone can read."""

        case = self.with_settings(checkpoint__enabled=False)

        def rank(communicator: Any) -> Any:
            training, ingest = case.begin(communicator)
            nowhere = root / "another machine's"
            resume(training, nowhere if communicator.rank else root, communicator, SEED)
            case.go(training, ingest, communicator)
            return end(training)

        return in_lockstep(self.workers, rank)


def commit(root: Path, taken: Snapshot) -> Path:
    """A snapshot as a checkpoint, and nothing else, in a folder of its own; returns that folder."""
    folder = root / taken.name
    checkpoint.commit(folder, taken.name, taken.weights, taken.state, taken.facts)
    return folder


def end(training: Training) -> Any:
    """All that must be equal bit for bit, comparable with ==; times left out."""
    learner = training.learner
    return exact(
        {
            "weights": learner.weights(),
            "model": learner.model.state_dict(),
            "learner": learner.state_dict(),
            "rank": learner.rank_state(),
            "state": vars(training.state),
            "history": [(each.step, without_times(each.metrics)) for each in training.measured()],
            "best": without_times(training.best),
            "random": rank_state.random_state(),
            "sums": [training.stretch.loss, training.stretch.norms, training.stretch.skipped],
        }
    )


def exact(value: Any) -> Any:
    """Tensors as their bytes, numbers as their texts (in which NaN equals itself)."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().cpu().numpy().tobytes()
    if isinstance(value, dict):
        return {str(key): exact(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [exact(each) for each in value]
    return repr(value)
