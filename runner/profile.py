"""torch.profiler over the first steps of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.ingest.batches import Columns, Ingest, MicroBatch

FOLDER = "profile"
TIMELINE = f"{FOLDER}/horovod-timeline.json"


class ProfiledIngest:
    """Another ingest, whose first `steps` steps are recorded into `path` (a trace for chrome://tracing or Perfetto).

    A step lasts from one batch's arrival to the next's, so waiting for data is in the trace too.
    """

    def __init__(self, inner: Ingest, steps: int, path: Path) -> None:
        self._inner, self._left, self._path = inner, steps, path

    def steps(self, epoch: int, done: int = 0) -> Iterator[list[MicroBatch]]:
        batches = self._inner.steps(epoch, done)
        if self._left:
            yield from self._profiled(batches)
        yield from batches

    def order(self, epoch: int) -> tuple[int, int]:
        return self._inner.order(epoch)

    def evaluation(self) -> Iterator[Columns]:
        return self._inner.evaluation()

    def close(self) -> None:
        self._inner.close()

    def _profiled(self, batches: Iterator[list[MicroBatch]]) -> Iterator[list[MicroBatch]]:
        from torch.profiler import profile

        left, self._left = self._left, 0
        profiler = profile(record_shapes=True)
        profiler.start()
        try:
            for batch in batches:
                yield batch
                left -= 1
                if not left:
                    break
        finally:  # also where the training ends before `steps`
            profiler.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(self._path))
