"""What is left of a run that had a fault: its end, its result, its MLflow run, its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

REPEATABLE = ("train/loss", "val/", "lr", "epoch")  # metrics; the others are times
Metrics = dict[tuple[str, int], list[float]]  # (key, step) -> values in MLflow


@dataclass(frozen=True)
class Outcome:
    """Of one command: `lines` are those of the screen and the error, each with the time.time() when it came."""

    code: int
    lines: Sequence[tuple[float, str]]
    ended: float  # time.time()
    run_dir: Path
    store: str  # tracking URI

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    @property
    def error(self) -> str:
        """What the command says last, after `error: `."""
        errors = [line for _, line in self.lines if line.startswith("error: ")]
        return "\n".join(line.removeprefix("error: ") for line in errors)

    @property
    def result(self) -> dict[str, Any]:
        """result.json; {} where there is none."""
        path = self.run_dir / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def run_id(self) -> str:
        return json.loads((self.run_dir / "run.json").read_text())["run_id"]

    @property
    def status(self) -> str:
        """Of the MLflow run; "" where there is none."""
        if not (self.run_dir / "run.json").exists():
            return ""
        return MlflowClient(self.store).get_run(self.run_id).info.status

    @property
    def tags(self) -> dict[str, str]:
        return MlflowClient(self.store).get_run(self.run_id).data.tags

    @property
    def end(self) -> tuple[int, str, str]:
        """Exit code, status in result.json, status in MLflow."""
        return self.code, self.result.get("status", ""), self.status

    @property
    def hash(self) -> str:
        return self.result["weights_sha256"]

    @property
    def moments(self) -> list[float]:
        """When faults happened, as time.time()."""
        path = self.run_dir / "fault" / "moments"
        return [float(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def forwards(self) -> dict[int, list[int]]:
        """Training forwards of each process, by rank, those of the last attempt last."""
        found: dict[int, list[int]] = {}
        paths = (self.run_dir / "fault").glob("rank-*")
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
            found.setdefault(int(path.name.split("-")[1]), []).append(int(path.read_text() or 0))
        return found

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.run_dir / "checkpoints").glob("*"))

    @property
    def events(self) -> str:
        client = MlflowClient(self.store)
        return Path(client.download_artifacts(self.run_id, "events.txt")).read_text()

    def log(self, rank: int) -> str:
        return (self.run_dir / "logs" / f"rank-{rank}.log").read_text()

    def seen(self, beginning: str) -> float:
        """Seconds from the first fault to the line that begins so."""
        return next(time for time, line in self.lines if line.startswith(beginning)) - self.moments[0]

    def ended_after(self) -> float:
        """Seconds from the last fault to the end of the command."""
        return self.ended - self.moments[-1]

    def metrics(self) -> Metrics:
        client = MlflowClient(self.store)
        found: Metrics = {}
        for key in client.get_run(self.run_id).data.metrics:
            for metric in client.get_metric_history(self.run_id, key):
                found.setdefault((key, metric.step), []).append(metric.value)
        return found

    def assert_equals(self, other: Outcome) -> None:
        """The same training as `other`: weights bit for bit, each metric of each step in MLflow exactly once."""
        assert self.hash == other.hash
        mine, theirs = self.metrics(), other.metrics()
        assert {key: values for key, values in mine.items() if len(values) != 1} == {}
        assert mine.keys() == theirs.keys()
        repeatable = [key for key in theirs if key[0].startswith(REPEATABLE)]
        assert {key: mine[key] for key in repeatable} == {key: theirs[key] for key in repeatable}
