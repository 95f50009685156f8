"""The attempts at one training: again after a lost process, not after an exception of the Python code."""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.diagnosis import diagnose, tried_in_vain
from runner.errors import RunnerError
from runner.job import Job, Restarted


class EndedError(Exception):
    """The ranks are gone, or must be, with how Ray or a rank tells it."""


class Attempts:
    """How many restarts there were, and whether there is to be another."""

    def __init__(self, job: Job, restarted: Restarted) -> None:
        self.job, self._restarted = job, restarted  # the job, of as many workers as there are
        self.count, self._since = 0, time.time()

    def failed(self, account: str) -> RunnerError | None:
        """The root cause, where it is final or was one too many; None after telling that there will be another attempt.

        `account` is what Ray or a rank says of the end of this one.
        """
        most = self.job.experiment.trainer.max_failures
        found = diagnose(self.job.run_dir, self.job.plan.num_workers, self._since, account)
        if found.is_final or self.count == most:
            return tried_in_vain(found, self.count, most)
        self.count += 1
        self._restarted(self.count, str(found.error))
        self._since = time.time()
        return None


def persistently(job: Job, train: Callable[[bool], None], restarted: Restarted) -> None:
    """Call `train`, with whether it is a restart, until it raises no EndedError, `trainer.max_failures` times more at most.
    Raises TrainingError with the root cause."""
    attempts = Attempts(job, restarted)
    while True:
        try:
            train(attempts.count > 0)
            return
        except EndedError as account:
            if (cause := attempts.failed(str(account))) is not None:
                raise cause from account
