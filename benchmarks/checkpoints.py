"""Samples a second with a checkpoint every 50 steps ÷ without any, of trainings longer than a minute.

    python benchmarks/checkpoints.py [pairs] [steps]

Two workers train the convolutional network on digits, with MLflow; the time is that of the training alone, from the
first step to the last, in which all checkpoints are copied, written and uploaded. The two of a pair run at the same
time, each on two cores of its own, where there are four: a machine's speed may change by a fifth from one minute to the
next. They take turns on the halves, or in going first where there are fewer cores. Prints every pair and the median
of their ratios.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BATCH = 2 * 64
TRAINING = (
    "experiment=digits_cnn",
    "scaling.num_workers=2",
    f"trainer.batch_size={BATCH // 2}",
    "trainer.validate_every_steps=500",
    "tracking.plots=false",
    "tracking.log_model=false",
)
KINDS = {
    "every 50 steps": ("checkpoint.every_steps=50", "checkpoint.every_epochs=null"),
    "none": ("checkpoint.enabled=false",),
}


def samples_a_second(name: str, number: int, steps: int, folder: Path, cores: set[int]) -> float:
    run_dir = folder / f"{number}-{name.replace(' ', '-')}"
    command = [sys.executable, "-m", "runner", *TRAINING, *KINDS[name]]
    command += [f"trainer.max_steps={steps}", f"hydra.run.dir={run_dir}"]
    # A store of its own: what one records must not wait for the other's.
    command += [f"tracking.uri=sqlite:///{run_dir}.db"]
    with (folder / f"{name}.txt").open("a") as output:
        subprocess.run(
            command,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
    seconds = json.loads((run_dir / "result.json").read_text())["seconds"]["training"]
    print(f"pair {number}, {name}: {seconds:.1f} s, {steps * BATCH / seconds:,.0f} samples/s", flush=True)
    return steps * BATCH / seconds


def main(pairs: int, steps: int) -> None:
    ratios = []
    cores = sorted(os.sched_getaffinity(0))
    halves = [set(cores[:2]), set(cores[2:4])] if len(cores) >= 4 else [set(cores)] * 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number in range(pairs):
            order = list(KINDS) if number % 2 else list(reversed(KINDS))  # neither is always the first
            with ThreadPoolExecutor(2 if halves[0] != halves[1] else 1) as together:
                started = [
                    together.submit(samples_a_second, name, number, steps, folder, half)
                    for name, half in zip(order, halves, strict=True)
                ]
            found = {name: each.result() for name, each in zip(order, started, strict=True)}
            ratios.append(found["every 50 steps"] / found["none"])
            print(f"pair {number}: ratio {ratios[-1]:.3f}", flush=True)
    print(
        f"median of {pairs}: {statistics.median(ratios):.3f}, so {1 - statistics.median(ratios):.1%} are lost"
    )


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(*(numbers + [3, 6000][len(numbers) :]))
