"""A session from the inside: one HorovodTrainer.fit() whose ranks pull one job after another from the board.

Imports no torch at the top: the processes around the ranks, which unpickle this module's function, need none.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

ASK_SECONDS = 60.0


def fit(name: str, spec: dict[str, Any]) -> str | None:
    """Run the ranks of the board `name` to their end. Returns Ray's account of a failure.

    `spec`: what ScalingConfig and RunConfig take (`scaling`, `storage_path`, `verbose`), the `horovod` settings, whether they
    are `deterministic`, whether Ray `is_local`, the file of Horovod's `timeline` if there is one, and the driver's `node`.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    from runner.diagnosis import account_of
    from runner.executors.ray_train import horovod_config, trainer_class

    horovod = replace(spec["horovod"], key=None, ssh_str=None)  # Ray writes the ranks' arguments into files
    trainer = trainer_class(spec["is_local"])(
        serve,
        train_loop_config={
            "board": name,
            "horovod": horovod,
            **{key: spec[key] for key in ("deterministic", "timeline", "node")},
        },
        horovod_config=horovod_config(spec["horovod"]),
        scaling_config=ScalingConfig(**spec["scaling"]),
        run_config=RunConfig(
            name=name,
            storage_path=spec["storage_path"],
            verbose=spec["verbose"],
            failure_config=FailureConfig(0),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001 (told to the driver, which knows the job)
        return account_of(error)
    return None


def serve(config: dict[str, Any]) -> None:
    """Runs in a Ray worker: train jobs until there are no more."""
    import ray
    from ray import train

    from runner import secrets
    from runner.executors.live_rank import Connected, kind_of, taken
    from runner.job import enter
    from runner.process_state import ProcessState
    from runner.worker import train_loop_per_worker

    board = ray.get_actor(config["board"])
    rank = train.get_context().get_world_rank()
    is_beside_driver = ray.get_runtime_context().get_node_id() == config["node"]
    communicator = Connected(config["horovod"], config["deterministic"], config["timeline"])
    state = ProcessState()
    ray.get(board.enlist.remote(ray.get_runtime_context().current_actor))
    for number in itertools.count():
        open_job, kept, memory, shards, is_restart, asks = taken(board, number)
        job = secrets.reveal(open_job, kept)
        enter(job)  # what is unpickled below may be of the user's modules
        communicator.serve(job.experiment.horovod)

        def report(values: dict[str, Any], number: int = number) -> None:
            if rank == 0:
                ray.get(board.tell.remote(("report", number, values)))

        def is_pruned(metrics: dict[str, float], number: int = number, asks: bool = asks) -> bool:
            if not asks:
                return False
            answer = None
            if rank == 0:
                answer = ray.get(board.ask.remote(("asks", number, metrics), ASK_SECONDS))
            return bool(communicator.broadcast(answer))

        error = None
        try:
            train_loop_per_worker(
                job,
                ray.get(memory),
                shards[rank] if shards else {},
                lambda: communicator,
                report,
                rank,
                is_restart,
                delivers=not is_beside_driver,
                is_pruned=is_pruned,
            )
        except Exception as raised:  # noqa: BLE001 (recorded in errors/ and told; the driver decides whether the group goes on)
            error = kind_of(raised)
        state.restore(job.experiment.trainer.compile)
        ray.get(board.tell.remote(("ended", number, rank, error)))
