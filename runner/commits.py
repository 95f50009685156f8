"""Copies of a training in memory, from which it goes on with other workers: what a rank is asked for."""

from __future__ import annotations

from typing import Protocol

from runner.communicator import Communicator
from runner.saving import Found, Training
from runner.train_state import TrainState


class Commits(Protocol):
    found: (
        Found | None
    )  # what the training goes on from, on every rank; None: from a checkpoint, or from the start

    def is_due(self, state: TrainState) -> bool:
        """Asked once a step, and answered alike on all ranks; besides, each time the loop pauses is due."""

    def keep(self, training: Training, communicator: Communicator) -> bool:
        """Take a copy on every rank. Whether other workers are to go on from it. Collective."""


class NoCommits:
    found: Found | None = None

    def is_due(self, state: TrainState) -> bool:
        return False

    def keep(self, training: Training, communicator: Communicator) -> bool:
        return False
