"""What a run's folder says about itself, without MLflow: what was launched, whether it ended, and who is at it.

`run.json` is written before the launch and `result.json` at the end, each whole or not at all. Two locks are held by
processes that live: `run.lock` by the driver, `rank-0.lock` by rank 0, which outlives a killed driver by seconds. So a
folder with a run.json, no result.json and free locks is that of a driver which was killed. On a cluster without a shared
file system rank 0's lock lies on its own node and says nothing here.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from runner.errors import ConfigError
from runner.json_file import write_json

RUN, RESULT, SWEEP = "run.json", "result.json", "sweep.json"
DRIVER_LOCK, RANK_0_LOCK = "run.lock", "rank-0.lock"
RUNS, JOBS = "runs/*/*", "multiruns/*/*/*"  # under outputs/
MULTIRUNS, PROOFS = "multiruns/*/*", "proofs/*/*"
POLL_SECONDS = 0.05
Result = dict[str, Any]  # what result.json holds
_held: set[int] = set()  # file descriptors of this process's locks


def now() -> str:
    """UTC, so that texts sort as times do."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True)
class RunFile:
    """run.json: all it takes to launch the run again."""

    run_id: str | None  # of the MLflow run
    tracking_uri: str | None
    fingerprint: str  # equal for commands that would train the same
    config: str  # YAML, interpolations unresolved
    overrides: list[str]
    working_dir: str
    import_roots: list[str]
    created: str  # as now() says it

    def write(self, run_dir: Path) -> None:
        """The caller holds run.lock by now, or the run would look lost."""
        write_json(run_dir / RUN, asdict(self), durable=True)

    @classmethod
    def read(cls, run_dir: Path) -> RunFile:
        """Raises ConfigError where there is none, or not a whole one."""
        path = run_dir / RUN
        try:
            held = json.loads(path.read_text())
            return cls(**{field.name: held[field.name] for field in fields(cls)})
        except FileNotFoundError as error:
            raise ConfigError(f"{run_dir}: not the folder of a run: it has no {RUN}") from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"{path}: not a whole {RUN} ({type(error).__name__}: {error})") from error


def write_composed(folder: Path, config: str, overrides: Sequence[str], hydra: str | None = None) -> None:
    """What Hydra itself would write of a job (hydra.output_subdir), as YAML without secrets; JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config)
    (folder / "overrides.yaml").write_text("".join(f"- {json.dumps(each)}\n" for each in overrides))
    if hydra is not None:
        (folder / "hydra.yaml").write_text(hydra)


def name_run(run_dir: Path, run_id: str) -> None:
    """Write down the id of an MLflow run that was created later than its folder."""
    if (run_dir / RUN).exists():
        replace(RunFile.read(run_dir), run_id=run_id).write(run_dir)
    if (result := read_result(run_dir)) is not None:
        write_result(run_dir, {**result, "run_id": run_id})


def write_result(run_dir: Path, result: Result) -> None:
    write_json(run_dir / RESULT, result, durable=True)


def read_result(run_dir: Path) -> Result | None:
    """None where the run has not ended, or nobody can read how."""
    try:
        result = json.loads((run_dir / RESULT).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


@contextmanager
def locked(run_dir: Path, name: str = DRIVER_LOCK, seconds: float = 10.0) -> Iterator[None]:
    """Hold a lock of the run, which the system frees when this process dies, however it dies.

    Raises ConfigError when another process still holds it after `seconds`.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / name
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # not inherited by programs that this process starts
    try:
        deadline = time.monotonic() + seconds
        while not _acquire(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"run {run_dir} is still being trained by {_holder(path)}; wait, or end that process"
                )
            time.sleep(POLL_SECONDS)
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        _held.add(file)
        yield
    finally:
        _held.discard(file)
        os.close(file)  # frees it; the file stays, for a deleted one could be locked twice


@contextmanager
def take(run_dir: Path, seconds: float = 10.0) -> Iterator[None]:
    """Hold the driver's lock of a run that goes on, once its earlier rank 0 is gone too. Raises ConfigError."""
    deadline = time.monotonic() + seconds
    with locked(run_dir, DRIVER_LOCK, seconds):
        with locked(run_dir, RANK_0_LOCK, deadline - time.monotonic()):
            pass
        yield


def is_free(run_dir: Path) -> bool:
    """Whether neither a driver nor a rank 0 is at this run."""
    return all(_is_free(run_dir / name) for name in (DRIVER_LOCK, RANK_0_LOCK))


def unfinished(outputs: Path, fingerprint: str) -> list[Path]:
    """Folders of runs with this fingerprint that can go on: not FINISHED, and nobody is at them. Newest first."""
    found = []
    wanted = json.dumps(fingerprint).encode()
    for run_dir in outputs.glob(RUNS):
        with suppress(OSError, ConfigError):  # a file in between, or torn by other means than ours
            if wanted in (run_dir / RUN).read_bytes():  # of thousands, few are parsed
                run = RunFile.read(run_dir)
                if run.fingerprint == fingerprint:
                    found.append((run.created, run_dir))
    return [
        run_dir
        for _, run_dir in sorted(found, reverse=True)
        if (read_result(run_dir) or {}).get("status") != "FINISHED" and is_free(run_dir)
    ]


def lost(outputs: Path) -> list[Path]:
    """Folders of runs, jobs of multiruns among them, whose driver was killed."""
    return [
        run_dir
        for run_dir in chain(outputs.glob(RUNS), outputs.glob(JOBS))
        if not (run_dir / RESULT).exists() and (run_dir / RUN).exists() and is_free(run_dir)
    ]


def begin_sweep(folder: Path, run_id: str | None, uri: str) -> None:
    """A sweep runs, for as long as its folder has this file and is locked."""
    write_json(folder / SWEEP, {"run_id": run_id, "tracking_uri": uri})


def end_sweep(folder: Path) -> None:
    (folder / SWEEP).unlink(missing_ok=True)


def lost_sweeps(outputs: Path) -> list[tuple[Path, str | None, str]]:
    """Folders of sweeps whose driver was killed, with their MLflow run and its store."""
    found = []
    for path in outputs.glob(f"{MULTIRUNS}/{SWEEP}"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            held = json.loads(path.read_text())
            if is_free(path.parent):
                found.append((path.parent, held["run_id"], held["tracking_uri"]))
    return found


def _let_go() -> None:
    """In a forked child (a DataLoader's worker): it would hold its parent's locks for as long as it outlives it.

    Not closed: the child may leave locked() too, when the number could be another file's.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file in _held:
        os.dup2(nothing, file, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go)


def _acquire(file: int, operation: int) -> bool:
    try:
        fcntl.flock(file, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        return _acquire(file, fcntl.LOCK_SH)  # shared, so that those who ask do not see each other
    finally:
        os.close(file)


def _holder(path: Path) -> str:
    return path.read_text().strip() or "another process"
