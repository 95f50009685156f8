"""Why an attempt failed: the one cause, from what the ranks left in the run's folder.

When a rank fails the others fail too, a moment later and with errors of their own. Each writes what happened to it:

    errors/rank-N.json   an exception (`record_error`)
    stalls/rank-N.json   it stood still (watchdog.py, also for the other files of stalls/)
    logs/rank-N.log      all that it printed; Python's own account of a crash

A rank that is killed writes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import stacks
from runner.errors import LaunchError, RunnerError, TrainingError, own_line
from runner.json_file import write_json
from runner.rank_log import log_path

LOST_PEER, ERROR, EXIT = "lost peer", "error", "exit"  # the kinds of an error's record
CRASH = "Fatal Python error: "  # what faulthandler, which Ray switches on, writes last
LOW = "running low on memory"  # in Ray's account
CRASH_BYTES = 1 << 14

Record = dict[str, Any]


@dataclass(frozen=True)
class Diagnosis:
    error: RunnerError
    is_final: bool  # it would happen again: a restart is no help
    rank: int | None = None  # where it began, if that is one rank


def record_error(run_dir: Path, rank: int, error: BaseException) -> None:
    """Leave a rank's failure for the driver. A full disk must not hide the failure itself, which Ray reports too."""
    kind, told = _told(error)
    path = error_path(run_dir, rank)
    with contextlib.suppress(OSError):
        write_json(
            path,
            {
                "kind": kind,
                "time": time.time(),
                "rank": rank,
                "host": socket.gethostname(),
                "type": type(told).__name__,
                "message": _exit_call(error) if isinstance(error, SystemExit) else str(told),
                # Runner's own errors say what is wrong.
                "line": None if isinstance(told, RunnerError) else own_line(error),
                "traceback": "".join(traceback.format_exception(error)),
            },
        )


def error_path(run_dir: Path, rank: int) -> Path:
    return run_dir / "errors" / f"rank-{rank}.json"


def account_of(error: BaseException) -> str:
    """What Ray says of a failure: the last of the causes, which wraps no other."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip() or type(error).__name__


def tried_in_vain(found: Diagnosis, restarts: int, most: int) -> RunnerError:
    """The error of the last attempt, which says how many restarts there were."""
    if found.is_final or not restarts:
        return found.error
    times = f"{restarts} restart{'s' if restarts > 1 else ''}"
    return type(found.error)(f"{found.error}; {times} did not help (trainer.max_failures={most})")


@dataclass
class FirstFailure:
    """A rank's first error, recorded when it is called with it; later ones follow from that."""

    run_dir: Path
    rank: int
    is_recorded: bool = False

    def __call__(self, error: BaseException | None) -> None:
        if error is not None and not self.is_recorded:
            record_error(self.run_dir, self.rank, error)
            self.is_recorded = True


def diagnose(run_dir: Path, num_workers: int, since: float, launch_error: str | None) -> Diagnosis:
    """The cause of the attempt that began at `since` (time.time()), from the records that are later.

    `launch_error` is what Ray says of it; None without Ray.
    """
    errors = _records(run_dir / "errors", ".json", since)
    stalls = _records(run_dir / "stalls", ".json", since)
    own = [record for record in errors if record["kind"] != LOST_PEER]
    first = min([*own, *stalls], key=lambda record: record["time"], default=None)
    if first in own:
        return _raised(run_dir, own, num_workers)
    if stalls:
        return _stalled(run_dir, stalls, errors, num_workers, since)
    processes = _records(run_dir / "stalls", ".pid", since)
    if not errors and not processes and not _is_newer(log_path(run_dir, 0), since):
        why = (
            "Ray ended them because the machine ran low on memory"
            if LOW in (launch_error or "")
            else _last_line(launch_error)
        )
        return Diagnosis(
            LaunchError(f"the workers did not start: {why} (verbose=true shows Ray's output)"), True
        )
    return _died(run_dir, errors, processes, num_workers, since, launch_error)


def _raised(run_dir: Path, errors: list[Record], num_workers: int) -> Diagnosis:
    first = min(errors, key=lambda record: record["time"])
    alike = [record for record in errors if _essence(record) == _essence(first)]
    is_everywhere = len(alike) == num_workers > 1
    who = "all ranks" if is_everywhere else f"rank {first['rank']}"
    said = " ".join(first["message"].split())
    if first["kind"] == ERROR and first["line"] is not None:
        said = f"{first['type']}: {said}" if said else first["type"]
    where = f"{first['line']}; " if first["line"] is not None else ""
    log = _short(log_path(run_dir, first["rank"]))
    error = TrainingError(f"{who}: {said} ({where}full trace in {log})")
    return Diagnosis(error, True, None if is_everywhere else first["rank"])


def _stalled(
    run_dir: Path, stalls: list[Record], errors: list[Record], num_workers: int, since: float
) -> Diagnosis:
    """Stuck is who was not waiting: by its own record, or for want of any."""
    waiting = [record for record in stalls if record["waiting"] is not None]
    stuck = [record["rank"] for record in stalls if record["waiting"] is None]
    told = {record["rank"] for record in [*stalls, *errors]}
    stuck = stuck or [rank for rank in range(num_workers) if rank not in told]
    account = f"stacks of all ranks: {_short(_collect_stacks(run_dir, stalls, since))}"
    first = min(stalls, key=lambda record: (record["rank"] not in stuck, record["time"]))
    halt = f"for {first['idle_seconds']:.0f} s at {first['position']}"
    if not stuck:
        calls = ", ".join(f"rank {record['rank']} in {record['waiting']}" for record in waiting)
        error = TrainingError(f"the ranks waited for each other {halt}: {calls}; {account}")
        return Diagnosis(error, False)
    line = first["line"] if first["rank"] in stuck else _line_of(run_dir, stuck[0], since)
    where = f" (in {line})" if line else ""
    others = [record["rank"] for record in waiting]
    it = "it" if len(stuck) == 1 else "them"
    waited = f"; {_ranks(others)} waited for {it}" if others else ""
    error = TrainingError(f"{_ranks(stuck)} made no progress {halt}{where}{waited}; {account}")
    return Diagnosis(error, False, stuck[0] if len(stuck) == 1 else None)


def _died(
    run_dir: Path,
    errors: list[Record],
    processes: list[Record],
    num_workers: int,
    since: float,
    launch_error: str | None,
) -> Diagnosis:
    """A rank is gone without a word: the one whose process Ray names, else all of which nothing is known."""
    ray = launch_error or ""
    named = re.findall(r"^\s*pid: (\d+)$", ray, re.MULTILINE)
    dead = [record["rank"] for record in processes if str(record["pid"]) in named[-1:]]
    told = {record["rank"] for record in errors}
    dead = dead or [rank for rank in range(num_workers) if rank not in told]
    if not dead:  # all ranks are there, and each says that another is not: the network between them
        first = min(errors, key=lambda record: record["time"])
        return Diagnosis(TrainingError(f"rank {first['rank']}: {first['message']}"), False)
    crash = _crash(log_path(run_dir, dead[0]), since)
    if crash:
        how = f"crashed: {crash}"
    elif LOW in ray:
        how = "was killed by Ray: its machine ran low on memory"
    elif code := re.search(r"exits with an exit code (\d+)", ray):
        how = f"ended with exit code {code[1]}, without a Python error"
    else:
        how = "ended without a Python error (killed, out of memory or os._exit) or stopped answering"
    rank = dead[0] if len(dead) == 1 else None
    log = _short(log_path(run_dir, dead[0])) if rank is not None else _short(run_dir / "logs")
    more = "" if launch_error is None else "; verbose=true shows Ray's account"
    error = TrainingError(f"{_ranks(dead)} {how} (log in {log}{more})")
    return Diagnosis(error, False, rank)


def _told(error: BaseException) -> tuple[str, BaseException]:
    """(kind, the error in our words)."""
    from runner.communicator import LostPeerError, lost_peer  # imports torch, which the driver can do without

    if isinstance(error, SystemExit):
        return EXIT, error
    cause: BaseException | None = error
    while cause is not None:
        if (lost := lost_peer(cause)) is not None:
            return (LOST_PEER, lost) if isinstance(lost, LostPeerError) else (ERROR, lost)
        cause = cause.__cause__
    return ERROR, error


def _exit_call(error: SystemExit) -> str:
    return f"sys.exit({'' if error.code is None else repr(error.code)}) was called"


def _records(folder: Path, suffix: str, since: float) -> list[Record]:
    records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"rank-*{suffix}"))]
    return sorted((record for record in records if record["time"] >= since), key=lambda each: each["rank"])


def _essence(record: Record) -> tuple[str, str]:
    return record["type"], record["message"]


def _collect_stacks(run_dir: Path, stalls: list[Record], since: float) -> Path:
    """logs/stacks.txt with where every rank was: a rank's own account, else what the signal dumped."""
    texts = {
        path: stacks.first_dump(path.read_text(errors="replace"))
        for path in (run_dir / "stalls").glob("rank-*.stack")
        if _is_newer(path, since)
    }
    parts = {int(path.stem.removeprefix("rank-")): text for path, text in texts.items() if text}
    parts |= {record["rank"]: record["stack"] for record in stalls}
    target = run_dir / "logs" / "stacks.txt"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(f"=== rank {rank}\n{parts[rank].strip()}\n" for rank in sorted(parts)))
    return target


def _line_of(run_dir: Path, rank: int, since: float) -> str | None:
    """Where the training thread of a rank was that could only dump its stack."""
    pid, stack = (run_dir / "stalls" / f"rank-{rank}.{suffix}" for suffix in ("pid", "stack"))
    if not (pid.exists() and _is_newer(stack, since)):
        return None
    thread = json.loads(pid.read_text())["thread"]
    return stacks.place(stacks.dumped(stack.read_text(errors="replace"), thread))


def _crash(log: Path, since: float) -> str | None:
    """What Python wrote to the log of a process that crashed, and where that was."""
    if not _is_newer(log, since):
        return None
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - CRASH_BYTES))
        _, is_crash, account = file.read().decode(errors="replace").rpartition(CRASH)
    if not is_crash:
        return None
    reason, _, stack = account.partition("\n\n")
    where = stacks.place(stacks.dumped(stack))
    return f"{reason} in {where}" if where else reason


def _is_newer(path: Path, since: float) -> bool:
    return path.exists() and path.stat().st_mtime >= since


def _last_line(text: str | None) -> str:
    return ((text or "").strip().splitlines() or ["no reason given"])[-1]


def _ranks(ranks: list[int]) -> str:
    """As in "rank 1", "ranks 0 and 2", "ranks 0, 1 and 2"."""
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
