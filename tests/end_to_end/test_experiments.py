"""What the experiments reach, and data and models of a user's own, on two real Horovod workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skops.io

from runner import checkpoint
from runner.executors.live_workers import LiveWorkers
from tests.end_to_end import warm
from tests.end_to_end.warm import measured, prepared


@pytest.mark.parametrize(
    ("experiment", "accuracy"), [("digits_cnn", 0.98), ("digits_resnet", 0.97), ("breast_cancer", 0.95)]
)
def test_an_experiment_reaches_its_accuracy(
    workers: LiveWorkers, tmp_path: Path, experiment: str, accuracy: float
) -> None:
    ready = prepared([f"experiment={experiment}", "tracking=none"], tmp_path)
    assert measured(warm.train(workers, ready, tmp_path))[-1]["val/accuracy"] >= accuracy


def test_diabetes_beats_the_mean_predictor_by_two_fifths(workers: LiveWorkers, tmp_path: Path) -> None:
    ready = prepared(["experiment=diabetes", "tracking=none"], tmp_path)
    (_, targets), (_, held_out) = (ready.data.splits[name].read(0, 1000) for name in ("train", "val"))
    by_the_mean = float(np.square(held_out - targets.mean()).mean())
    assert measured(warm.train(workers, ready, tmp_path))[-1]["val/loss"] <= 0.6 * by_the_mean


def test_a_lightning_module_trains_as_it_stands(workers: LiveWorkers, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "lit.yaml").write_text("_target_: tests.lightning_modules.Digits\nlr: 0.2\n")
    overrides = [
        "model=lit",
        "checkpoint.monitor=val/acc",
        "checkpoint.mode=max",
        "trainer.epochs=3",
        "tracking=none",
    ]
    ready = prepared(overrides, tmp_path, config_dir=tmp_path)
    assert (
        ready.plan.learning_rate.line() == "lr 0.2 (base, batch 32) × 2 (linear: 64/32) = 0.4"
    )  # the module's own
    history = measured(warm.train(workers, ready, tmp_path))
    assert set(history[-1]) >= {"train/loss", "train/acc", "val/loss", "val/acc", "val/f1"}
    assert history[-1]["val/acc"] > 0.8


def test_a_thousand_mixed_columns_train_after_one_yaml_file(workers: LiveWorkers, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    label = draws.integers(0, 2, 300)
    columns: dict[str, object] = {
        "größe ↑": np.where(draws.random(300) < 0.1, np.nan, label + draws.standard_normal(300) / 4)
    }
    columns |= {f"zahl {n}": draws.standard_normal(300) for n in range(500)}
    columns |= {f"stadt {n}": draws.choice(["Ulm", "Łódź", None], 300) for n in range(250)}
    columns |= {
        f"tag {n}": pd.Timestamp("2026-01-01") + pd.to_timedelta(draws.integers(0, 99, 300), "D")
        for n in range(248)
    }
    frame = pd.DataFrame({**columns, "label": label})
    frame.to_csv(tmp_path / "wide.csv", index=False)
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "wide.yaml").write_text(
        f"_target_: datasets.table.read\ntask: classification\npath: {tmp_path / 'wide.csv'}\ntarget: label\n"
        "target_kind: classification\nstream: null\n"
    )
    ready = prepared(["dataset=wide", "trainer.epochs=3", "tracking=none"], tmp_path, config_dir=tmp_path)
    history = measured(warm.train(workers, ready, tmp_path))
    assert history[-1]["train/loss"] < history[0]["train/loss"]
    kept = checkpoint.committed(tmp_path / "checkpoints")[-1] / "preprocessing.skops"
    fitted = skops.io.load(kept, trusted=["numpy.dtype"])
    assert fitted.n_features_in_ == 999
