"""The table of executors: what was run with each, and where that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

COLUMNS = ("train", "exception", "resume", "SIGKILL", "hash at 2 workers")
EXECUTORS = ("horovod_trainer", "ray_executor", "train_v2", "horovodrun", "elastic", "local")
OWN_PROCESS = ("train_v2",)  # of one process and the others: in the tests' Ray Train is V1
OPTIONS = {"elastic": ("executor.min_workers=2", "executor.commit_steps=1")}
WORKERS = {"local": 1}  # of the others: 2
NO_CELL = {
    ("local", "SIGKILL"): "its one process is the driver's: see rows 14 and 15",
    ("local", "hash at 2 workers"): "one process; at one worker it is that of horovod_trainer",
}
LAUNCHERS = {"horovodrun": (str(Path(sys.executable).with_name("horovodrun")), "-np", "2")}
# What ends with a lost rank goes on when it is started again.
RESTARTING = tuple(name for name in EXECUTORS if name not in LAUNCHERS and (name, "SIGKILL") not in NO_CELL)
IN_EVERY_TEST = ("local",)  # the default is in all tests; the others' cells are filled by make faults
filled: dict[tuple[str, str], str] = {}


def lines() -> list[str]:
    """One an executor, as far as its cells were filled."""
    if not filled:
        return []
    rows = [["executor", *COLUMNS]]
    for executor in EXECUTORS:
        cells = [filled.get((executor, column)) or NO_CELL.get((executor, column), "–") for column in COLUMNS]
        rows.append([executor, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
