"""Options of a training, on real workers and in a real store: what they leave behind, and what they do to the numbers."""

from __future__ import annotations

import json

import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from runner import checkpoint
from tests.end_to_end.conftest import Train

SHORT = ("trainer.epochs=2", "dataset.limit_rows=200", "tracking.log_model=false")


def test_everything_that_may_be_switched_on_at_once_and_a_run_that_starts_from_its_weights(
    train: Train,
) -> None:
    first = train(
        *SHORT,
        "trainer.precision=bf16",
        "trainer.ema_decay=0.9",
        "trainer.clip_norm=1",
        "trainer.log_norms=true",
        "trainer.profile_steps=2",
        "horovod.timeline=true",
        "horovod.compression=fp16",
        "horovod.gradient_predivide_factor=2",
        "horovod.groups=2",
        "optimizer.decay_norms_and_biases=false",
        "loss.class_weights=balanced",
        "loss.label_smoothing=0.1",
        "metrics=classification",
        "dataset.ingest=dataloader",
        "dataset.loader_workers=1",
    )
    assert set(first["metrics"]) >= {"norm/gradient", "norm/parameters", "val/f1", "val/auroc"}
    store = MlflowClient(f"sqlite:///{first['folder'].parent}/outputs/mlflow.db")
    plots = {found.path for found in store.list_artifacts(first["run_id"], "plots")}
    assert plots >= {f"plots/{name}.png" for name in ("loss", "lr", "throughput", "confusion", "samples")}
    traces = {found.path for found in store.list_artifacts(first["run_id"], "profile")}
    assert traces == {"profile/torch-trace.json", "profile/horovod-timeline.json"}
    events = json.loads((first["folder"] / "profile" / "torch-trace.json").read_text())["traceEvents"]
    assert any("aten::" in event.get("name", "") for event in events)
    assert "ALLREDUCE" in (first["folder"] / "profile" / "horovod-timeline.json").read_text()

    second = train(
        *SHORT, f"model.init_from=runs:/{first['run_id']}", "model.freeze=layers.1", "trainer.max_steps=2"
    )
    best = load_file(checkpoint.committed(first["folder"] / "checkpoints")[-1] / "weights.safetensors")
    tuned = load_file(checkpoint.committed(second["folder"] / "checkpoints")[-1] / "weights.safetensors")
    assert torch.equal(tuned["layers.1.weight"], best["layers.1.weight"])
    assert not torch.equal(tuned["layers.3.weight"], best["layers.3.weight"])
