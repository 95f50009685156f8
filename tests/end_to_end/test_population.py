"""search=pbt as a user types it: one member whose learning rate is hopeless takes over another's training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner import checkpoint
from runner.checkpoint import SEAL, WEIGHTS
from tests.end_to_end.conftest import Finished

LRS = ["0.1", "0.05", "0.02", "1e-06"]
COMMAND = (
    "--multirun search=pbt search.perturb_every_epochs=2 trainer.epochs=4 scaling.num_workers=2 "
    f"scaling.resources_per_worker.CPU=0.25 tracking.plots=false tracking.log_model=false optimizer.lr={','.join(LRS)}"
)


@pytest.mark.soak
def test_the_hopeless_member_goes_on_with_the_best_one_s_weights(command: Callable[..., Finished]) -> None:
    done = command(*COMMAND.split(), timeout=300)
    assert done.code == 0, done.stderr + done.stdout
    client = MlflowClient(f"sqlite:///{done.folder}/outputs/mlflow.db")
    found = client.search_runs([each.experiment_id for each in client.search_experiments()])
    jobs = {int(run.data.tags["runner.job"]): run for run in found if "runner.job" in run.data.tags}
    first = {
        number: next(
            each.partition("=")[2]
            for each in json.loads(run.data.tags["runner.overrides"])
            if each.startswith("optimizer.lr=")
        )
        for number, run in jobs.items()
    }
    assert sorted(first.values()) == sorted(LRS)
    lost, best = (next(number for number in jobs if first[number] == lr) for lr in ("1e-06", "0.1"))

    # Who took over whom, in MLflow
    events = {number: run.data.tags.get("runner.last_event", "") for number, run in jobs.items()}
    assert events[lost].startswith(f"took over job {best} at epoch 2: optimizer.lr 1e-06 → 0.")
    assert [number for number, event in events.items() if event] == [lost]
    text = Path(client.download_artifacts(jobs[lost].info.run_id, "events.txt", str(done.folder))).read_text()
    assert text.count(events[lost]) == 1
    config = Path(
        client.download_artifacts(jobs[lost].info.run_id, "config.yaml", str(done.folder))
    ).read_text()
    assert "lr: 1.0e-06" not in config
    assert f"job {lost}: took over job {best} at epoch 2" in done.stdout

    # Each metric once a step, continuous
    steps = {}
    for number, run in jobs.items():
        assert (run.info.status, run.data.tags["runner.status"]) == ("FINISHED", "FINISHED")
        for key in ("val/loss", "train/loss", "epoch", "lr"):
            history = client.get_metric_history(run.info.run_id, key)
            steps[number, key] = [metric.step for metric in history]
            assert len(set(steps[number, key])) == len(history)
        assert steps[number, "val/loss"] == steps[number, "epoch"] == [23, 46, 69, 92]
        lrs = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "lr")}
        assert lrs[46] == 2 * float(first[number])  # the job of its own number, by the linear rule
        assert (lrs[92] == lrs[46]) is (number != lost)
    losses = [metric.value for metric in client.get_metric_history(jobs[lost].info.run_id, "val/loss")]
    assert losses[0] > 2.2
    assert losses[1] > 2.2
    assert losses[2] < 1.5

    # The weights right after are the other's, and Ray had only a reference to them
    folders = {number: Path(run.data.tags["runner.run_dir"]) for number, run in jobs.items()}
    taken, source = (folders[number] / "checkpoints" / "step-00000046" for number in (lost, best))
    manifests = [checkpoint.verify(path) for path in (taken, source)]
    assert manifests[0]["files"][WEIGHTS] == manifests[1]["files"][WEIGHTS]
    assert manifests[0]["run_id"] == jobs[lost].info.run_id
    kept = sorted(done.folder.glob("outputs/multiruns/*/*/ray/population-*/job-*/checkpoint_*"))
    assert {path.parent.name for path in kept} == {"job-0", "job-1", "job-2", "job-3"}
    for path in kept:
        assert [file.name for file in path.iterdir()] == ["reference.json"]
        reference = json.loads((path / "reference.json").read_text())
        assert sorted(reference) == ["epoch", "job", "path", "sha256"]
        assert path.parent.name == f"job-{reference['job']}"
        seal = checkpoint.read_manifest(Path(reference["path"]))[SEAL]
        assert (seal == reference["sha256"]) is (reference["job"] != lost)  # its own was replaced

    # The sweep ends as others do
    assert "4 jobs: 4 finished" in done.stdout
    assert len(list(done.folder.glob("outputs/multiruns/*/*/leaderboard/leaderboard.csv"))) == 1
