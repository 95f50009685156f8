"""Horovod on Ray Train V2 without anything of runner but its backend: `python -m tests.end_to_end.on_train_v2 folder`."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def train(config: dict[str, Any]) -> None:
    """Each rank sums the ranks; in the first attempt the last one then ends without a word."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    folder, port = Path(config["folder"]), int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    earlier = [json.loads(path.read_text())["port"] for path in folder.glob("attempt-*-rank-0.json")]
    attempt = 2 if earlier else 1
    found = {
        "port": port,
        "sum": hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum).item(),
        "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank()],
        "listening": [is_open(each) for each in (port, *earlier)],
    }
    hvd.allreduce(torch.zeros(()), name="all have looked")
    (folder / f"attempt-{attempt}-rank-{hvd.rank()}.json").write_text(json.dumps(found))
    if attempt == 1:
        hvd.allreduce(torch.zeros(()), name="all have written")
        if hvd.rank() == 1:
            os._exit(1)
        hvd.allreduce(torch.zeros(()), name="never")


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(folder: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from runner.executors.horovod_backend import HorovodConfig

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    DataParallelTrainer(
        train,
        train_loop_config={"folder": folder},
        backend_config=HorovodConfig(),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="ray", storage_path=f"{folder}/ray", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
