"""Horovod's own launcher, without Ray: `horovodrun -np 2 python -m runner …`, also with `-H host:slots` by ssh.

Use it where there is no Ray, or where a queue hands out hosts. Not where a lost rank must be restarted by itself: horovodrun
ends all ranks then, and `horovodrun … python -m runner resume` goes on. Nor for data near the size of the memory: each rank has
the arrays. Like Horovod's own, its connections are for networks that are trusted.

Rank 0 is the driver: it prepares, records, and trains in its own process. The others connect to it at once, at an address
that it leaves with the launcher, print nothing, and wait for the job (other_ranks.py).
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
import traceback
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path

from runner import interrupts
from runner.communicator import LostPeerError, lost_peer
from runner.diagnosis import diagnose, error_path, record_error
from runner.errors import LaunchError
from runner.executors.joined import joined
from runner.executors.launched import Launch
from runner.executors.launcher_store import find
from runner.executors.other_ranks import ENDED, GONE, READY, kept_alive, receive, the_others, unpacked
from runner.job import Job, Memory, Received, Restarted, enter
from runner.process_state import ProcessState
from runner.rank_log import ASIDE, END, captured, log_path
from runner.secrets import mask
from runner.worker import train_loop_per_worker

RECORD_SECONDS = 1.0  # for the others to tell how they ended, after the first that failed
LOST_SECONDS = 0.5  # until the end of a process is seen here
END_SECONDS = 30.0  # for the others to end a training that rank 0 has ended


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job` here as rank 0, and on the ranks that wait. Raises TrainingError with the cause; nothing is restarted."""
    others = the_others()
    state, since = ProcessState(), time.time()
    try:
        others.hand(job, memory)
        train_loop_per_worker(job, memory, {}, partial(joined, job), received, 0, is_captured=False)
        others.until(lambda: others.failed() or others.all_said(ENDED), END_SECONDS)
        if others.failed():
            raise LostPeerError("another rank failed at the end")
    except LaunchError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and not (
            _stood_still(job.run_dir, since) or others.until(others.failed, LOST_SECONDS)
        ):
            raise  # the user's; else the watchdog's, or horovodrun's, which ends all ranks where one is gone
        interrupts.ending()
        if isinstance(error, KeyboardInterrupt | LostPeerError):
            record_error(job.run_dir, 0, LostPeerError("another rank is gone, or stands still"))
        _keep_trace(job.run_dir, error)
        _disconnect()
        others.until(lambda: others.all_said(ENDED, GONE), RECORD_SECONDS)
        others.keep_records(job.run_dir)
        raise diagnose(job.run_dir, job.plan.num_workers, since, None).error from error
    finally:
        state.restore(job.experiment.trainer.compile)


def follow(launch: Launch) -> int:
    """On every other rank: train what rank 0 hands out, print nothing, and end with it. Returns the exit code, where there was no
    rank 0 any more: that of the launch is its own."""
    with captured(Path(os.devnull)):
        given = find()
        if given is None:  # rank 0 has ended meanwhile
            return 0
        host, port, key = given
        try:
            connection = Client((host, port), authkey=key)
        except (OSError, EOFError):
            return 0
        kept_alive(connection)
        for number in (signal.SIGTERM, signal.SIGINT):  # rank 0's to answer: this process ends with it
            signal.signal(number, lambda *_: None)
        inbox: queue.Queue[list[bytes]] = queue.Queue()
        connection.send(launch.rank)
        threading.Thread(target=receive, args=(connection, inbox), daemon=True).start()
        import horovod.torch  # noqa: F401 (takes its time while rank 0 prepares)

        job: Job = unpacked(inbox.get())
        enter(job)
        path, record = error_path(job.run_dir, launch.rank), None
        path.unlink(missing_ok=True)  # of an earlier attempt
        try:
            memory: Memory = unpacked(inbox.get())
            connection.send((READY, None))
            inbox.get()
            connect = partial(joined, job)
            train_loop_per_worker(job, memory, {}, connect, lambda values: None, launch.rank)
        except Exception as error:  # noqa: BLE001 (recorded, and told)
            if not path.exists():  # as a training does by itself
                record_error(job.run_dir, launch.rank, error)
            record = path.read_text()
        connection.send((ENDED, record))
        if record is not None:
            _disconnect()
        while True:
            inbox.get()


def _disconnect() -> None:
    """Free the ranks that wait for this one in a collective: there they get an error. It may wait for them itself."""
    import horovod.torch as hvd

    closing = threading.Thread(target=hvd.shutdown, daemon=True)
    closing.start()
    closing.join(RECORD_SECONDS)


def _stood_still(run_dir: Path, since: float) -> bool:
    """Whether the watchdog has given rank 0 up."""
    record = run_dir / "stalls" / "rank-0.json"
    return record.exists() and record.stat().st_mtime >= since


def _keep_trace(run_dir: Path, error: BaseException) -> None:
    """Of rank 0, whose output is the driver's: in its log all the same, and not on the screen."""
    path = log_path(run_dir, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    lost = lost_peer(error)
    trace = f"rank 0: {lost}\n" if isinstance(lost, LostPeerError) else traceback.format_exc()
    with path.open("a") as log:
        log.write(mask(f"{ASIDE}\n{trace}{END}\n"))
