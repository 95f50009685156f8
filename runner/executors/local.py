"""One process, without Ray and Horovod: the training runs where it was started from.

Use it in a debugger, in a notebook and for fast tests. Not for more than one worker, nor where a crash of the training must not end
the program: nothing restarts it, and no watchdog ends it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from runner.communicator import SingleProcess
from runner.diagnosis import account_of, diagnose
from runner.job import Job, Memory, Received, Restarted
from runner.process_state import ProcessState
from runner.worker import train_loop_per_worker


def run(job: Job, memory: Memory, received: Received, restarted: Restarted) -> None:
    """Train `job` here; what it prints is not captured. `received` gets its reports. Raises TrainingError with the cause.

    The process is afterwards as it was: random numbers, threads, default dtype, hooks (process_state.py).
    """
    trainer = replace(
        job.experiment.trainer, watchdog_seconds=None
    )  # who stands at a breakpoint is not stuck
    job = replace(job, experiment=replace(job.experiment, trainer=trainer))
    state, since = ProcessState(), time.time()
    try:
        train_loop_per_worker(job, memory, {}, SingleProcess, received, rank=0, is_captured=False)
    except Exception as error:
        raise diagnose(job.run_dir, 1, since, account_of(error)).error from error
    finally:
        state.restore(trainer.compile)
