"""Two live Horovod workers that train one config after another: what is tested is the training, not its launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from runner import config
from runner.communicator import Communicator, HorovodCommunicator
from runner.prepare import Prepared, Request, prepare
from runner.verbs.train import attachments
from runner.worker import Job, Memory, train_loop_per_worker
from tests.composed import CONF

_kept: list[HorovodCommunicator] = []  # of a worker process


class Kept:
    """A communicator that outlives its training."""

    def __init__(self, inner: HorovodCommunicator) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        pass


class Workers:
    """`size` workers of a RayExecutor, in a Ray that has been started."""

    def __init__(self, size: int) -> None:
        from horovod.ray import RayExecutor

        self.size = size
        settings = RayExecutor.create_settings(timeout_s=60, nics={"lo"})
        self._executor = RayExecutor(
            settings, num_workers=size, cpus_per_worker=1, use_current_placement_group=False
        )
        self._executor.start()

    def train(self, prepared: Prepared, run_dir: Path) -> list[dict[str, Any]]:
        """Rank 0's reports of one training."""
        import ray

        job = Job(
            experiment=prepared.experiment,
            plan=prepared.plan,
            data=prepared.data.facts,
            run_dir=run_dir,
            run_id=None,
            tracking_uri=None,
            working_dir=Path.cwd(),
            import_roots=(),
            attachments=attachments(prepared.data.preprocessing),
        )
        memory = ray.put(Memory(prepared.data.splits, prepared.initial))
        return self._executor.run(_train, args=[job, [memory]])[0]

    def close(self) -> None:
        self._executor.shutdown()


def measured(reports: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The metrics of all epochs and validations."""
    return [metrics for report in reports for metrics in report.get("history", [])]


def _train(job: Job, memory: list[Any]) -> list[dict[str, Any]]:
    import ray

    if not _kept:
        _kept.append(HorovodCommunicator(job.experiment.horovod, deterministic=False))
    communicator: Communicator = Kept(_kept[0])
    reports: list[dict[str, Any]] = []
    train_loop_per_worker(
        job, ray.get(memory[0]), {}, lambda: communicator, reports.append, communicator.rank
    )
    return reports


def prepared(overrides: list[str], run_dir: Path, config_dir: Path | None = None) -> Prepared:
    """What `python -m runner <overrides>` would launch."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        search = [f"hydra.searchpath=[file://{config_dir}]"] if config_dir else []
        composed = compose("config", overrides=[*overrides, *search])
    request = Request(config.load(composed), "", {}, tuple(overrides), run_dir, run_dir, ())
    return prepare(request)
