"""Every file of conf/, by the command that its first line names: a dry run, and a few steps on two real workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from runner.communicator import SingleProcess
from runner.dry_run import dry_run
from runner.errors import ConfigError, PreflightError
from runner.executors.live_workers import LiveWorkers
from runner.job import Job, Memory
from runner.report.console import Screen
from runner.worker import train
from tests.composed import CONF
from tests.end_to_end import warm
from tests.end_to_end.warm import measured, prepared
from tests.fakes import without_times
from tests.test_conf import command

SMALL = [
    "scaling.num_workers=2",
    "trainer.max_steps=3",
    "trainer.batch_size=8",
    "dataset.limit_rows=40",
    "scheduler.warmup_epochs=0",
    "scheduler.warmup_steps=null",
    "tracking=none",
]
# Those of conf/executor start workers of their own: tests/faults/test_executors.py.
FILES = sorted(path for path in CONF.rglob("*.yaml") if path.parent.name not in ("conf", "executor"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the comments in conf/dataset name."""
    folder = tmp_path_factory.mktemp("data")
    draws = np.random.default_rng(0)
    table = pd.DataFrame({"age": draws.integers(20, 60, 50), "city": draws.choice(["Ulm", "Łódź"], 50)})
    table["label"] = table["age"] % 2
    table.to_csv(folder / "data.csv", index=False)
    table.to_parquet(folder / "data.parquet")
    for label in ("cat", "dog"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(25):
            pixels = draws.integers(0, 255, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")
    np.save(folder / "inputs.npy", draws.standard_normal((50, 4)).astype(np.float32))
    np.save(folder / "targets.npy", draws.integers(0, 2, 50))
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text("It was a bright cold day in April. " * 100)
    return folder


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_a_file_s_command_rehearses_and_trains(
    path: Path, workers: LiveWorkers, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    overrides = [*(o for o in command(path) if o != "--multirun"), *SMALL]
    if "scaling=gpu" in overrides and not Path("/dev/nvidia0").exists():
        with pytest.raises(PreflightError, match=r"scaling\.use_gpu=false"):
            prepared(overrides, tmp_path)
        return
    if "lr_scaling=adasum" in overrides:  # this Horovod has none
        with pytest.raises(ConfigError, match=r"horovod\.op=average"):
            prepared(overrides, tmp_path)
        return
    ready = prepared(overrides, tmp_path)
    rehearsed = dry_run(ready, Screen())
    if path.parent.name == "horovod":  # other HOROVOD_* settings, which ranks read when they connect
        with LiveWorkers(2, ready.experiment.horovod) as others:
            reports = warm.train(others, ready, tmp_path)
    else:
        reports = warm.train(workers, ready, tmp_path)
    history = measured(reports)
    if ready.plan.learning_rate.is_adaptive:
        assert 3 <= history[-1]["adascale/steps"] < 5
    else:
        assert history[-1]["epoch"] == 3 / ready.plan.steps_per_epoch
    assert set(rehearsed) <= set(history[-1]) | {"lr", "epoch"}
    for name in ("train/loss", "val/loss", "lr"):
        assert math.isfinite(history[-1][name]), name
    assert len(reports[-2]["weights_sha256"]) == 64


def test_a_compiled_model_trains_as_the_plain_one(workers: LiveWorkers, tmp_path: Path) -> None:
    overrides = ["model=cnn", "model.dropout=0", *SMALL]
    losses = []
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        reports = warm.train(workers, prepared([*overrides, f"trainer.compile={compiled}"], folder), folder)
        losses.append(measured(reports)[-1]["val/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_adascale_on_two_ranks_is_that_of_two_accumulated_micro_batches(
    workers: LiveWorkers, tmp_path: Path
) -> None:
    overrides = [
        "lr_scaling=adascale",
        "scheduler=cosine",
        "trainer.precision=float64",
        *SMALL,
        "trainer.max_steps=24",
    ]
    ranks = measured(warm.train(workers, prepared(overrides, tmp_path), tmp_path))
    ready = prepared(
        [*overrides, "scaling.num_workers=1", "trainer.accumulation_steps=2"], tmp_path / "alone"
    )
    job = Job(
        ready.experiment, ready.plan, ready.data.facts, tmp_path / "alone", None, None, tmp_path, (), {}
    )
    reports: list[dict[str, Any]] = []
    memory = Memory(ready.data.splits, ready.initial)
    threads = torch.get_num_threads()
    train(job, memory, {}, SingleProcess(), reports.append)
    torch.set_num_threads(threads)
    alone = measured(reports)
    assert len(ranks) == len(alone) > 2
    for found, expected in zip(ranks, alone, strict=True):
        assert without_times(found) == pytest.approx(without_times(expected), rel=1e-9)
    assert 24 <= ranks[-1]["adascale/steps"] < 26
    assert all(1 <= each["adascale/gain"] <= 2 for each in ranks)
    assert ranks[-1]["adascale/gain"] > 1.05
