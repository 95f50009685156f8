"""What a checkpoint every 50 steps takes from a training of more than a minute: samples a second that are lost to it.

    python benchmarks/checkpoints.py [experiment] [steps]

Two workers train a network on digits (experiment=digits_resnet), with MLflow. A checkpoint is copied, gathered, written
and pruned within the 25 steps after it: they are compared with the 25 steps before the next one, for each checkpoint
anew, because the speed of a machine may change by a fifth from one minute to the next. Not in it: the uploads, one each
10 s, which take about 3 ms of a CPU.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import runner.worker
from runner import config
from runner.__main__ import request_of
from runner.communicator import Communicator
from runner.job import Job, Memory
from runner.prepare import prepare
from runner.saving import Due
from runner.tracking import open_record
from runner.train_state import TrainState
from runner.verbs.proof_jobs import groups, job_of, memory_of
from runner.worker import train_loop_per_worker

EVERY = 50
TRAINING = (
    "scaling.num_workers=2",
    "trainer.validate_every_steps=5000",
    f"checkpoint.every_steps={EVERY}",
    "checkpoint.every_epochs=null",
    "tracking.plots=false",
    "tracking.log_model=false",
)


def main(experiment: str, steps: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        config.register_schema()
        request = request_of([f"experiment={experiment}", *TRAINING, f"trainer.max_steps={steps}"], ())
        request = replace(request, run_dir=Path(temporary), outputs=Path(temporary))
        prepared = prepare(request)
        record = open_record(prepared.experiment.tracking, request.outputs, "checkpoints")
        job = replace(job_of(prepared, request.run_dir, ()), run_id=record.run_id, tracking_uri=record.uri)
        with groups(request)(2) as workers:
            ends = workers.run(trained, job, memory_of(prepared))[0]
    seconds = ends[-1][0] - ends[0][0]
    halves = [cost(ends[: steps // 2]), cost(ends[steps // 2 :])]
    plain, extra = cost(ends)
    print(f"{steps // EVERY} checkpoints in {seconds:.0f} s; {plain:.2f} ms a step without one")
    print(
        f"a checkpoint takes {extra:.1f} ms (halves of the training: {', '.join(f'{each:.1f}' for _, each in halves)})"
    )
    speed = prepared.plan.global_batch_size * 1000
    with_it = plain + extra / EVERY
    print(
        f"samples/s: {speed / plain:,.0f} without, {speed / with_it:,.0f} with: {1 - plain / with_it:.1%} lost"
    )


def cost(ends: list[tuple[float, bool]]) -> tuple[float, float]:
    """(ms of a step far from a checkpoint, ms that a checkpoint adds to the steps after it), means."""
    after: list[list[float]] = [[] for _ in range(EVERY)]
    for step in range(4 * EVERY, len(ends)):
        (start, is_epoch), (end, ends_epoch) = ends[step - 1 : step + 1]
        if not is_epoch and not ends_epoch:  # an epoch's end has work of its own
            after[step % EVERY].append(1000 * (end - start))
    means = [
        statistics.mean(sorted(each)[: -(len(each) // 50) or None]) for each in after
    ]  # but for pauses of the machine
    plain = statistics.mean(means[EVERY // 2 :])
    return plain, sum(mean - plain for mean in means[: EVERY // 2])


def trained(
    job: Job, memory: Memory, shards: Mapping[str, Any], communicator: Communicator
) -> list[tuple[float, bool]]:
    """The time at the end of each step, and whether it ends an epoch; a checkpoint is due after it."""
    ends: list[tuple[float, bool]] = []

    class Timed(Due):
        def __call__(self, state: TrainState) -> bool:
            ends.append((time.monotonic(), state.rows == 0))
            return super().__call__(state)

    runner.worker.Due = Timed  # type: ignore[misc]
    train_loop_per_worker(job, memory, shards, lambda: communicator, lambda report: None, communicator.rank)
    return ends


if __name__ == "__main__":
    given = sys.argv[1:]
    experiment, steps = given + ["digits_resnet", "6000"][len(given) :]
    main(experiment, int(steps))
