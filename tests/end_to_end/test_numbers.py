"""The numbers of real runs on one warm Ray: repeatable, and the same however the batch is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from runner import checkpoint
from tests.end_to_end.conftest import Train


def weights(result: dict[str, Any]) -> dict[str, torch.Tensor]:
    return load_file(checkpoint.committed(result["folder"] / "checkpoints")[-1] / "weights.safetensors")


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_same_config_gives_the_same_weights(train: Train, num_workers: int) -> None:
    overrides = (
        "tracking=none",
        "trainer.deterministic=true",
        "trainer.epochs=3",
        f"scaling.num_workers={num_workers}",
    )
    first, second = train(*overrides), train(*overrides)
    other_seed = train(*overrides, "seed=1")
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["metrics"]["val/loss"] == second["metrics"]["val/loss"]
    assert other_seed["weights_sha256"] != first["weights_sha256"]


def test_one_global_batch_is_one_step_however_it_is_split(train: Train) -> None:
    """1438 rows leave a short last batch, which two ranks of micro-batches cannot share evenly."""
    common = (
        "tracking=none",
        "trainer.epochs=2",
        "lr_scaling=none",
        "dataset.limit_rows=301",
        "optimizer.momentum=0.9",
    )
    splits = [(1, 24, 1), (2, 12, 1), (3, 8, 1), (2, 6, 2)]
    runs = [
        train(
            *common,
            f"scaling.num_workers={workers}",
            f"trainer.batch_size={rows}",
            f"trainer.accumulation_steps={accumulation}",
        )
        for workers, rows, accumulation in splits
    ]
    alone = weights(runs[0])
    for run in runs[1:]:
        for name, tensor in weights(run).items():
            torch.testing.assert_close(tensor, alone[name], rtol=0, atol=2e-6)
        assert run["metrics"]["val/loss"] == pytest.approx(runs[0]["metrics"]["val/loss"], abs=1e-5)
        assert run["metrics"]["val/accuracy"] == runs[0]["metrics"]["val/accuracy"]


def test_the_quickstart_learns_its_line(train: Train) -> None:
    result = train("experiment=quickstart", "scaling.num_workers=3", "tracking=none")
    assert result["metrics"]["val/loss"] < 1e-3


def test_ray_data_trains_beside_its_workers_on_every_row_and_repeats_itself(train: Train) -> None:
    """1003 training rows on 3 workers (Ray's own split loses one); the workers leave it a CPU."""
    overrides = ("dataset=synthetic", "dataset.rows=1254", "dataset.ingest=ray_data", "scaling.num_workers=3")
    common = ("tracking=none", "trainer.deterministic=true", "trainer.epochs=2")
    first, second = train(*overrides, *common), train(*overrides, *common)
    assert first["weights_sha256"] == second["weights_sha256"]
    assert first["status"] == "FINISHED"  # the loop asserts that an epoch takes each row once
