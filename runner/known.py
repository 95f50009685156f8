"""What has been found out already, of jobs of one process that have it in common: a check that passed, a data set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from runner.schema import Experiment

if TYPE_CHECKING:
    from runner.ingest.arrays import Data

DATA_SETS = 2  # that are kept in memory
Found = TypeVar("Found")


class Known:
    """For one job, or for all of a sweep; any thread may ask. What raised is found out again."""

    def __init__(self) -> None:
        self._loading = Lock()  # one at a time: it fills the memory
        self._found: dict[tuple[Any, ...], Any] = {}
        self._data: OrderedDict[str, Data] = OrderedDict()

    def once(self, *key: Any, find: Callable[[], Found]) -> Found:
        """What `find` gave the first time for this key."""
        if key not in self._found:
            self._found[key] = find()
        return cast(Found, self._found[key])

    def data(self, experiment: Experiment) -> Data:
        """The experiment's data set, loaded and checked; the last ones stay in memory. Raises ConfigError."""
        from runner.ingest import arrays

        key = data_key(experiment)
        with self._loading:
            if key not in self._data:
                self._data[key] = arrays.load(experiment.dataset, experiment.seed)
            self._data.move_to_end(key)
            while len(self._data) > DATA_SETS:
                self._data.popitem(last=False)
            return self._data[key]


def data_key(experiment: Experiment) -> str:
    """Equal for experiments with the same data."""
    return repr((asdict(experiment.dataset), experiment.seed))
