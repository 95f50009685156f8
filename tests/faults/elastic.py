"""What an elastic training did, from the records of its ranks (project/recorded.py), and who disturbs it meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Built:
    """The model of a rank, built once for each set of workers."""

    time: float
    rank: int
    pid: int
    forwards: tuple[dict, ...]  # time, count, rows


@dataclass(frozen=True)
class Stint:
    """From one change of the workers to the next: `forwards` by count, each a list over the ranks of their rows."""

    built: tuple[Built, ...]

    @property
    def size(self) -> int:
        return len(self.built)

    @property
    def first(self) -> int:
        """Forwards that the weights had behind them at the first one."""
        return min(each.forwards[0]["count"] for each in self.built if each.forwards)

    @property
    def began(self) -> float:
        return min(each.forwards[0]["time"] for each in self.built if each.forwards)

    @property
    def last(self) -> float:
        """The time of the last forward."""
        return max(each.forwards[-1]["time"] for each in self.built if each.forwards)

    @property
    def pids(self) -> dict[int, int]:
        """By rank."""
        return {each.rank: each.pid for each in self.built}

    def rows(self) -> dict[int, list[int]]:
        """Of all ranks, by count."""
        found: dict[int, list[int]] = {}
        for each in self.built:
            for line in each.forwards:
                found.setdefault(line["count"], []).extend(line["rows"])
        return found


def stints(folder: Path) -> list[Stint]:
    """Those that took a step. Rank 0 is built in each, and no rank trains on in one after the next has begun to build."""
    built = []
    for path in sorted(folder.glob("built-*.jsonl")):
        _, moment, rank, pid = path.stem.split("-")
        lines = path.read_text().splitlines(keepends=True)
        forwards = tuple(json.loads(line) for line in lines if line.endswith("\n"))
        built.append(Built(float(moment), int(rank), int(pid), forwards))
    begins = sorted(each.time for each in built if each.rank == 0)
    of: dict[int, list[Built]] = {}
    for each in built:
        if each.forwards:
            number = sum(begin <= each.forwards[0]["time"] for begin in begins)
            of.setdefault(number, []).append(each)
    return [Stint(tuple(sorted(of[number], key=lambda each: each.rank))) for number in sorted(of)]


def kept(all_stints: list[Stint]) -> list[tuple[Stint, int, list[int]]]:
    """(stint, count, rows of all ranks) of each forward that is part of the training, in order: what a loss undid is not."""
    found = []
    for index, stint in enumerate(all_stints):
        limit = min((later.first for later in all_stints[index + 1 :]), default=None)
        found += [
            (stint, count, rows)
            for count, rows in sorted(stint.rows().items())
            if limit is None or count < limit
        ]
    return found


class Disturbance(threading.Thread):
    """Adds and removes stand-in hosts and kills ranks, `changes` times, each after `steps` forwards of the workers expected."""

    def __init__(
        self, hosts: Path, folder: Path, actions: Callable[[int, int], str], changes: int, steps: int = 4
    ) -> None:
        super().__init__(daemon=True)
        self.hosts, self.folder, self.actions, self.changes, self.steps = (
            hosts,
            folder,
            actions,
            changes,
            steps,
        )
        self.done: list[tuple[float, str, int]] = []  # when, what, how many workers are expected then
        self._names = (f"host-{number}" for number in itertools.count(len(self.present) + 1))

    @property
    def present(self) -> list[str]:
        return self.hosts.read_text().split()

    def write(self, names: list[str]) -> None:
        draft = self.hosts.with_suffix(".draft")
        draft.write_text("".join(f"{name}\n" for name in names))
        draft.replace(self.hosts)

    def run(self) -> None:
        for number in range(self.changes):
            size = len(self.present)
            stint = self.settled(size)
            if stint is None:
                return
            action = self.actions(number, size)
            names = self.present
            if action == "join":
                names.append(next(self._names))
            else:
                names.remove(random.Random(number).choice(names))
            if (
                action == "kill"
            ):  # some rank; its host is whichever, so that its place has to be taken away too
                victim = random.Random(number).choice(sorted(stint.pids))
                name = place_of(self.folder.parent, stint.pids[victim])
                names = [each for each in self.present if each != name]
                self.done.append((time.time(), f"kill rank {victim}", len(names)))
                self.write(names)
                os.kill(stint.pids[victim], signal.SIGKILL)
            else:
                self.done.append((time.time(), action, len(names)))
                self.write(names)

    def settled(self, size: int) -> Stint | None:
        """The stint of so many workers, once it has taken its steps; None where there is none for a minute."""
        since = self.done[-1][0] if self.done else 0.0
        deadline = time.time() + 60
        while time.time() < deadline:
            last = (stints(self.folder) or [None])[-1]
            is_new = last is not None and last.size == size and last.began > since
            if is_new and all(len(each.forwards) >= self.steps for each in last.built):
                return last
            time.sleep(0.1)
        return None


def place_of(run_dir: Path, pid: int) -> str:
    """The stand-in host of a process, from the log that it has open."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        target = path.readlink()
        if target.parent == run_dir / "logs" and target.name.startswith("worker-"):
            return target.name.removeprefix("worker-").rpartition("-")[0]
    raise AssertionError(f"{pid} has no log of a place open")
