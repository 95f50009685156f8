"""The trainings of a sweep in one warm process group, with nothing around them: one HorovodTrainer.fit for all.

    python benchmarks/sweep_bare.py lr=0.05,0.1 hidden=64,128 epochs=3

Prints the final validation loss of each job. Run by benchmarks/sweep.py.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

# Ray would run its workers at niceness 15; runner does not either.
os.environ.update({"RAY_TRAIN_V2_ENABLED": "0", "RAY_worker_niceness": "0"})
sys.path.insert(0, str(Path(__file__).resolve().parent))

import horovod.torch as hvd
import ray
from hand_training import arrays, train
from ray import train as ray_train
from ray.train import RunConfig, ScalingConfig
from ray.train.horovod import HorovodTrainer


def train_loop_per_worker(config: dict) -> None:
    hvd.init()
    losses = [train(config["arrays"], *job, epochs=config["epochs"]) for job in config["jobs"]]
    ray_train.report({"losses": losses})


def main(lrs: str, widths: str, epochs: str) -> None:
    jobs = [
        (float(lr), int(width))
        for lr, width in itertools.product(*(text.partition("=")[2].split(",") for text in (lrs, widths)))
    ]
    ray.init(num_cpus=2, runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parent)}})
    result = HorovodTrainer(
        train_loop_per_worker,
        train_loop_config={"arrays": arrays(), "jobs": jobs, "epochs": int(epochs.partition("=")[2])},
        scaling_config=ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}),
        run_config=RunConfig(storage_path=str(Path.cwd() / "bare")),
    ).fit()
    for (lr, width), loss in zip(jobs, result.metrics["losses"], strict=True):
        print(f"lr={lr} hidden={width} loss {loss:.6f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
