"""Another ingest, each of whose batches is a sign of life."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runner.ingest.batches import Columns, Ingest, MicroBatch


class ObservedIngest:
    """Calls `beat` when a batch has arrived, and when it has been used."""

    def __init__(self, inner: Ingest, beat: Callable[[], None]) -> None:
        self._inner, self._beat = inner, beat

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        for batches in self._inner.steps(epoch, done):
            self._beat()
            yield batches
            self._beat()

    def order(self, epoch: int) -> tuple[int, int]:
        return self._inner.order(epoch)

    def evaluation(self) -> Iterator[Columns]:
        for columns in self._inner.evaluation():
            self._beat()
            yield columns

    def close(self) -> None:
        self._inner.close()
