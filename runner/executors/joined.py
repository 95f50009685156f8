"""A rank that joins the others of its job by Horovod. Imports torch."""

from __future__ import annotations

from collections.abc import Collection

from runner.communicator import HorovodCommunicator
from runner.job import Job
from runner.profile import TIMELINE


def joined(job: Job, without: Collection[str] = ()) -> HorovodCommunicator:
    """With the job's settings, but for the HOROVOD_* variables `without`, and its timeline where it is to be written."""
    settings = job.experiment.horovod
    timeline = job.run_dir / TIMELINE if settings.timeline else None
    return HorovodCommunicator(settings, job.experiment.trainer.deterministic, timeline, without)
