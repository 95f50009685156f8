"""A sweep as one writes it by hand: a plain Hydra multirun, a HorovodTrainer.fit a job, one ray.init for all.

    python benchmarks/sweep_by_hand.py --multirun lr=0.05,0.1 hidden=64,128

Prints the final validation loss of each job. Run by benchmarks/sweep.py.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

# Ray would run its workers at niceness 15; runner does not either.
os.environ.update({"RAY_TRAIN_V2_ENABLED": "0", "RAY_worker_niceness": "0"})
sys.path.insert(0, str(Path(__file__).resolve().parent))

import horovod.torch as hvd
import hydra
import ray
from hand_training import arrays, train
from hydra.core.config_store import ConfigStore
from ray import train as ray_train
from ray.train import RunConfig, ScalingConfig
from ray.train.horovod import HorovodTrainer


@dataclass
class Settings:
    lr: float = 0.1
    hidden: int = 128
    epochs: int = 5


ConfigStore.instance().store(name="settings", node=Settings)


def train_loop_per_worker(config: dict) -> None:
    hvd.init()
    ray_train.report({"loss": train(**config)})


@hydra.main(version_base="1.3", config_path=None, config_name="settings")
def main(settings: Settings) -> None:
    if not ray.is_initialized():
        ray.init(num_cpus=2, runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parent)}})
    result = HorovodTrainer(
        train_loop_per_worker,
        train_loop_config={"arrays": arrays(), **settings},
        scaling_config=ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}),
        run_config=RunConfig(storage_path=str(Path.cwd() / "by_hand")),
    ).fit()
    print(f"lr={settings.lr} hidden={settings.hidden} loss {result.metrics['loss']:.6f}", flush=True)


if __name__ == "__main__":
    main()
