"""Samples a second with a checkpoint every 50 steps ÷ without any, in the blocks of one training of minutes.

    python benchmarks/checkpoints.py [experiment] [blocks] [steps of a block]

Two workers train a network on digits (experiment=digits_resnet), with MLflow. Every second block of steps writes checkpoints; all
that they cost is in it: copies, the ranks' exchange, files, and the uploads meanwhile. Blocks, because the speed of a
machine may change by a fifth from one minute to the next: each is compared with the mean of its two neighbours.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import runner.worker
from runner import config
from runner.__main__ import request_of
from runner.communicator import Communicator
from runner.prepare import prepare
from runner.saving import Due
from runner.tracking import open_record
from runner.train_state import TrainState
from runner.verbs.proof_jobs import groups, job_of, memory_of
from runner.worker import Job, Memory, train_loop_per_worker

TRAINING = (
    "scaling.num_workers=2",
    "trainer.validate_every_steps=500",
    "checkpoint.every_steps=50",
    "checkpoint.every_epochs=null",
    "tracking.plots=false",
    "tracking.log_model=false",
)


def main(experiment: str, blocks: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        config.register_schema()
        request = request_of(
            [f"experiment={experiment}", *TRAINING, f"trainer.max_steps={blocks * steps}"], ()
        )
        request = replace(request, run_dir=Path(temporary), outputs=Path(temporary))
        prepared = prepare(request)
        record = open_record(prepared.experiment.tracking, request.outputs, "checkpoints")
        job = replace(job_of(prepared, request.run_dir, ()), run_id=record.run_id, tracking_uri=record.uri)
        with groups(request)(2) as workers:
            ends = workers.run(trained(steps), job, memory_of(prepared))[0]
    seconds = [end - start for start, end in pairwise(ends)]  # of blocks 1, 2, …
    ratios = []
    for number in range(1, len(seconds) - 1):
        beside = (seconds[number - 1] + seconds[number + 1]) / 2
        writes = number % 2 == 0  # the block after the first end is the second, an even one
        ratios.append(beside / seconds[number] if writes else seconds[number] / beside)
    for kind, each in {"every 50 steps": seconds[::2], "none": seconds[1::2]}.items():
        speed = prepared.plan.global_batch_size * steps / statistics.median(each)
        print(f"{kind}: {sum(each):.1f} s, {speed:,.0f} samples/s in the median of {len(each)} blocks")
    ratio = statistics.median(ratios)
    print(f"ratios of blocks: {', '.join(f'{each:.3f}' for each in ratios)}")
    print(f"median: {ratio:.3f}, so {1 - ratio:.1%} are lost")


def trained(steps: int) -> Any:
    """A training in which every second block of `steps` writes checkpoints; gives the time at the end of each block."""

    def on_rank(
        job: Job, memory: Memory, shards: Mapping[str, Any], communicator: Communicator
    ) -> list[float]:
        ends: list[float] = []

        class EverySecondBlock(Due):
            def __call__(self, state: TrainState) -> bool:
                if state.step % steps == 0:
                    ends.append(time.monotonic())
                block = (state.step - 1) // steps
                return super().__call__(state) and block % 2 == 1

        runner.worker.Due = EverySecondBlock  # type: ignore[misc]
        train_loop_per_worker(
            job, memory, shards, lambda: communicator, lambda report: None, communicator.rank
        )
        return ends

    return on_rank


if __name__ == "__main__":
    given = sys.argv[1:]
    experiment, blocks, steps = given + ["digits_resnet", "13", "500"][len(given) :]
    main(experiment, int(blocks), int(steps))
