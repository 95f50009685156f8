"""The main job as one writes it by hand: Ray's HorovodTrainer quickstart, on digits, without MLflow.

The same training as `python -m runner model=mlp scaling.num_workers=4`: rows, model, batch, LR, epochs, a validation
pass and a checkpoint an epoch. It knows what one must know to run at all on two cores (V1 of Ray Train, fractional
CPUs); it has no config, no plan, no determinism, no record. Run by benchmarks/main_job.py.
"""

from __future__ import annotations

import os
import sys
import tempfile

os.environ["RAY_TRAIN_V2_ENABLED"] = "0"

import horovod.torch as hvd
import ray
import torch
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.horovod import HorovodTrainer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

EPOCHS, BATCH, WORKERS = 20, 32, 4


def train_loop_per_worker(config: dict) -> None:
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, x_val, y, y_val = (torch.from_numpy(array) for array in config["arrays"])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    size = BATCH * hvd.size()
    for epoch in range(EPOCHS):
        model.train()
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for step in range(0, len(x), size):
            rows = order[step : step + size][hvd.rank() :: hvd.size()]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            mine = slice(hvd.rank(), None, hvd.size())
            correct = (model(x_val[mine]).argmax(1) == y_val[mine]).float().mean()
        accuracy = hvd.allreduce(correct, op=hvd.Average).item()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if hvd.rank() == 0:
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))  # noqa: PTH118
                checkpoint = Checkpoint.from_directory(folder)
            train.report({"loss": loss.item(), "accuracy": accuracy}, checkpoint=checkpoint)


def main(storage: str) -> None:
    inputs, labels = load_digits(return_X_y=True)
    arrays = train_test_split((inputs / 16.0).astype("float32"), labels, test_size=0.2, random_state=0)
    ray.init()
    result = HorovodTrainer(
        train_loop_per_worker,
        train_loop_config={"arrays": arrays},
        scaling_config=ScalingConfig(
            num_workers=WORKERS, resources_per_worker={"CPU": 0.5}, trainer_resources={"CPU": 0}
        ),
        run_config=RunConfig(storage_path=storage),
    ).fit()
    print("val/accuracy", result.metrics["accuracy"])


if __name__ == "__main__":
    main(sys.argv[1])
