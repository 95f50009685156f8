"""The numbers of real trainings: repeatable, whoever launches them, and reached.

That they are the same however a batch is split is what `prove equivalence` shows (test_proofs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.executors.live_workers import LiveWorkers
from tests.end_to_end import warm
from tests.end_to_end.conftest import Train

Live = Callable[[int], LiveWorkers]


@pytest.fixture
def trained(live: Live, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """trained(*overrides) → what rank 0 of three live workers reports."""

    def run(*overrides: str) -> dict[str, Any]:
        folder = tmp_path / f"live-{len(list(tmp_path.iterdir()))}"
        reports = warm.train(live(3), warm.prepared([*overrides, "tracking=none"], folder), folder)
        reported = {key: value for report in reports for key, value in report.items()}
        return {**reported, "metrics": warm.measured(reports)[-1]}

    return run


def test_the_same_config_gives_the_same_weights_by_ray_data(
    train: Train, trained: Callable[..., dict[str, Any]]
) -> None:
    """1003 training rows, of which Ray's own split loses one; the loop asserts that an epoch takes each once. Those in memory:
    test_sweeps.py."""
    common = ("trainer.epochs=2", "dataset=synthetic", "dataset.rows=1254", "dataset.ingest=ray_data")
    common = (*common, "trainer.deterministic=true", "scaling.num_workers=3")
    launched = train(*common, "tracking=none")
    first, second, other_seed = trained(*common), trained(*common), trained(*common, "seed=1")
    assert first["weights_sha256"] == second["weights_sha256"] == launched["weights_sha256"]
    assert first["metrics"]["val/loss"] == second["metrics"]["val/loss"] == launched["metrics"]["val/loss"]
    assert other_seed["weights_sha256"] != first["weights_sha256"]


def test_tensors_and_dataloader_train_on_the_same_rows(trained: Callable[..., dict[str, Any]]) -> None:
    overrides = ("trainer.deterministic=true", "dataset.limit_rows=301", "scaling.num_workers=3")
    tensors = trained(*overrides, "trainer.epochs=2", "dataset.ingest=tensors")
    loader = trained(*overrides, "trainer.epochs=2", "dataset.ingest=dataloader")
    assert tensors["weights_sha256"] == loader["weights_sha256"]


def test_the_quickstart_learns_its_line(trained: Callable[..., dict[str, Any]]) -> None:
    result = trained("experiment=quickstart", "scaling.num_workers=3")
    assert result["metrics"]["val/loss"] < 1e-3
