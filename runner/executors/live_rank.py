"""A rank that trains one job after another: connected once, whatever they are."""

from __future__ import annotations

from typing import Any

from runner.communicator import HorovodCommunicator, LostPeerError
from runner.errors import TrainingError
from runner.schema import Horovod

TAKE_SECONDS = 30.0  # that a rank waits for one answer
TOGETHER, ALONE = "together", "alone"  # how a rank's training failed


class Connected(HorovodCommunicator):
    """A communicator that outlives its jobs."""

    def serve(self, horovod: Horovod) -> None:
        """What is not read when ranks connect (compression, …) is the job's."""
        self._settings = horovod
        self.waited = 0.0

    def close(self) -> None:
        """The end of a job; the group's is that of its processes."""


def kind_of(error: BaseException) -> str:
    """TOGETHER: an error that runner raises after the ranks have agreed on it, a loss that is not finite for one. Where all
    ranks have one, none is left in a collective."""
    is_agreed = isinstance(error, TrainingError) and not isinstance(error, LostPeerError)
    return TOGETHER if is_agreed else ALONE


def taken(board: Any, number: int) -> Any:
    """What a rank is to do as job `number`, as soon as it is there."""
    import ray

    is_there, handed = False, []
    while not is_there:
        is_there, handed = ray.get(board.take.remote(number, TAKE_SECONDS))
    return ray.get(handed[0])
