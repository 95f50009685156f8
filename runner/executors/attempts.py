"""The attempts at one training: again after a lost process, not after an exception of the Python code."""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.diagnosis import diagnose, tried_in_vain
from runner.job import Job, Restarted


class EndedError(Exception):
    """The ranks are gone, or must be, with how Ray or a rank tells it."""


def persistently(job: Job, train: Callable[[bool], None], restarted: Restarted) -> None:
    """Call `train`, with whether it is a restart, until it raises no EndedError, `trainer.max_failures` times more at most.
    Raises TrainingError with the root cause."""
    most, count = job.experiment.trainer.max_failures, 0
    while True:
        since = time.time()
        try:
            train(count > 0)
            return
        except EndedError as account:
            found = diagnose(job.run_dir, job.plan.num_workers, since, str(account))
            if found.is_final or count == most:
                raise tried_in_vain(found, count, most) from account
        count += 1
        restarted(count, str(found.error))
