"""What a rank of an elastic training holds: the last commit, from which it goes on with other workers."""

from __future__ import annotations

from typing import Any

from horovod.common.elastic import State
from horovod.common.exceptions import HostsUpdatedInterrupt

from runner.communicator import Communicator
from runner.executors.connections import Connections
from runner.plan import Position
from runner.saving import Found, Training, snapshot
from runner.train_state import TrainState


class Held(State):
    """A commit is a checkpoint in memory (saving.snapshot), on every rank: the weights, the optimizer, the schedule, all ranks'
    random numbers and sums, everything measured, and the position."""

    def __init__(self, every_steps: int, connections: Connections) -> None:
        from horovod.torch import broadcast_object, rank

        super().__init__(bcast_object=broadcast_object, get_rank=rank)
        self.found: Found | None = None
        self.skips_sync = False  # what the last change of the workers says
        self._every, self._connections = every_steps, connections

    @property
    def position(self) -> Position | None:
        if self.found is None:
            return None
        state: dict[str, Any] = self.found[1]["train_state"]
        return Position(state["epoch"], state["step"], state["rows"])

    def is_due(self, state: TrainState) -> bool:
        return state.step % self._every == 0

    def keep(self, training: Training, communicator: Communicator) -> bool:
        taken = snapshot(training, communicator, {}, {}, on_all=True)
        assert taken is not None
        self.found = taken.name, {**taken.state, "weights": dict(taken.weights)}
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt as change:
            self.skips_sync = change.skip_sync
            self._connections.before()
            return True
        return False

    def sync(self) -> None:
        """Rank 0's commit: a rank that was lost within a commit has left some with the one before."""
        self.found = self._bcast_object(self.found, root_rank=0, name="commit")

    def save(self) -> None:
        """A commit is taken by `keep`."""

    def restore(self) -> None:
        """After a loss, before Horovod connects anew. The training will be built from `found`."""
        self._connections.end()
        self._connections.before()

    def reset(self) -> None:
        """After Horovod has connected anew."""
        self._connections.after()
