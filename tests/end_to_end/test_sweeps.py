"""Sweeps on warm sessions, in this process on one Ray: the numbers of each job, what is not run again, searches."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from runner import __main__ as door

SMALL = (
    "model=mlp",
    "model.dropout=0.2",
    "trainer.epochs=2",
    "trainer.deterministic=true",
    "dataset.limit_rows=200",
    "tracking.log_model=false",
    "tracking.plots=false",
)
NOT_SHOWN = {*(each.partition("=")[0] for each in SMALL), "scaling.num_workers"}
Results = dict[tuple[str, ...], dict[str, Any]]


@pytest.fixture
def sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _warm_ray: None
) -> Callable[..., tuple[int, Results]]:
    """sweep(*arguments) → exit code, and each job's result.json by its overrides; all sweeps of a test have one store."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, Results]:
        monkeypatch.setattr(sys, "argv", ["runner"])
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = door.run(["--multirun", *SMALL, "scaling.num_workers=2", *arguments])
        found = {}
        for path in sorted(tmp_path.glob("outputs/multiruns/*/*/*/result.json")):
            asked = json.loads((path.parent / "run.json").read_text())["overrides"]
            key = tuple(each for each in asked if each.partition("=")[0] not in NOT_SHOWN)
            found[key] = {**json.loads(path.read_text()), "folder": path.parent}
        return code, found

    return run


def runs(folder: Path) -> list[Run]:
    """Of the test's store, oldest first."""
    client = MlflowClient(f"sqlite:///{folder}/outputs/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    return sorted(client.search_runs(experiments), key=lambda run: run.info.start_time)


def parents(folder: Path) -> list[Run]:
    return [run for run in runs(folder) if run.data.tags.get("runner.kind") == "multirun"]


def children(folder: Path, parent: Run) -> dict[int, Run]:
    mine = [run for run in runs(folder) if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert len({run.data.tags["runner.job"] for run in mine}) == len(mine)
    return {int(run.data.tags["runner.job"]): run for run in mine}


def test_a_job_has_the_numbers_it_has_alone_in_any_order_and_in_fresh_workers(sweep, train, tmp_path, capfd):
    assert sweep("trainer.precision=float32,float64", "seed=4")[0] == 0
    code, warm = sweep("trainer.precision=float64,float32", "seed=4", "sweep.cache=false")
    assert code == 0
    hashes: dict[frozenset[str], list[str]] = {}
    for overrides, result in warm.items():
        numbers = frozenset(each for each in overrides if not each.startswith("sweep."))
        hashes.setdefault(numbers, []).append(result["weights_sha256"])
    assert [(len(each), len(set(each))) for each in hashes.values()] == [(2, 1)] * 2

    one = {"trainer.precision=float64", "seed=4"}
    code, cold = sweep("trainer.precision=float64", "seed=4", "sweep.isolation=process", "sweep.cache=false")
    assert code == 0
    (fresh,) = [result for asked, result in cold.items() if "sweep.isolation=process" in asked]
    alone = train(*SMALL, "scaling.num_workers=2", *one)
    assert set(hashes[frozenset(one)]) == {fresh["weights_sha256"]} == {alone["weights_sha256"]}


def test_what_was_done_is_not_done_again_and_another_sweep_shows_it(sweep, tmp_path, capfd):
    assert sweep("optimizer.lr=0.1,0.2")[0] == 0
    first = runs(tmp_path)
    (two,) = [run for run in first if run.data.params.get("optimizer.lr") == "0.2"]
    capfd.readouterr()
    assert sweep("optimizer.lr=0.1,0.2")[0] == 0
    said = capfd.readouterr().out
    assert [line.split("  ")[2] for line in said.splitlines() if line.startswith("[")] == ["cached", "cached"]
    assert [run.info.run_id for run in runs(tmp_path)] == [run.info.run_id for run in first]

    code, results = sweep("optimizer.lr=0.2,0.3", "sweep.dry_run=true")
    assert code == 0
    said = capfd.readouterr().out.splitlines()
    assert len(results) == 2
    assert "optimizer.lr=0.2" in said[0]
    assert f"cached (run {two.info.run_id})" in said[0]
    assert "lr 0.2 (base, batch 32) × 2 (linear: 64/32) = 0.4" in said[0]
    assert "  run  batch 64 = 2 workers × 32 rows; steps " in said[1]

    code, results = sweep("optimizer.lr=0.2,0.3")
    assert (code, len(results)) == (0, 3)
    parent = parents(tmp_path)[1]
    shown = children(tmp_path, parent)
    assert shown[0].data.tags["runner.cached"] == two.info.run_id
    assert shown[0].data.metrics["best/val/loss"] == two.data.metrics["best/val/loss"]
    assert [run.info.status for run in (parent, *shown.values())] == ["FINISHED"] * 3
    folder = Path(parent.data.tags["runner.run_dir"])
    table = (folder / "leaderboard" / "leaderboard.csv").read_text().splitlines()
    assert len(table) == 3


def test_after_a_failure_none_begins_where_that_is_asked_for_and_jobs_may_have_other_workers(
    sweep, tmp_path, capfd
):
    code, results = sweep(
        "optimizer.lr=0.1,1e30,0.2",
        "sweep.on_failure=stop",
        "sweep.max_concurrent=1",
        "trainer.max_failures=0",
    )
    assert code == 1
    statuses = {asked[0]: result["status"] for asked, result in results.items()}
    assert statuses["optimizer.lr=1e+30"] == "FAILED"
    assert statuses["optimizer.lr=0.1"] == "FINISHED"
    error = capfd.readouterr().err
    assert "job 1 (optimizer.lr=1e+30): all ranks: step " in error
    assert "not finite" in error
    code, results = sweep("scaling.num_workers=1,2", "seed=7")
    assert code == 0
    mine = [result for asked, result in results.items() if "seed=7" in asked]
    assert len(mine) == 1  # the key leaves the number of workers out
    assert [run.info.status for run in children(tmp_path, parents(tmp_path)[1]).values()] == ["FINISHED"] * 2


def test_a_search_goes_on_with_continued_numbers(sweep, tmp_path, capfd):
    search = ("search=tpe", "optimizer.lr=tag(log,interval(0.001,1))", "search.seed=1")
    assert sweep(*search, "search.trials=10")[0] == 0
    assert sweep(*search, "search.trials=20")[0] == 0
    (parent,) = parents(tmp_path)
    tried = children(tmp_path, parent)
    assert sorted(tried) == list(range(20))
    assert len({run.data.params["optimizer.lr"] for run in tried.values()}) == 20
    values = {number: run.data.metrics["best/val/loss"] for number, run in tried.items()}
    best = min(values, key=lambda number: values[number])
    shown = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("1 ")]
    assert shown[-1][1] == str(best)


def test_what_asha_stops_is_marked_and_can_go_on(sweep, tmp_path, capfd):
    code, _ = sweep(
        "search=asha",
        "search.reduction=2",
        "optimizer.lr=0.5,1e-6,2e-6,3e-6",
        "trainer.epochs=4",
        "sweep.max_concurrent=1",
    )
    assert code == 0
    (parent,) = parents(tmp_path)
    jobs = children(tmp_path, parent)
    pruned = [run for run in jobs.values() if run.data.tags["runner.status"] == "PRUNED"]
    assert pruned
    assert {run.info.status for run in pruned} == {"KILLED"}
    best = [run for run in jobs.values() if run.data.params["optimizer.lr"] == "0.5"]
    assert best[0].data.tags["runner.status"] == "FINISHED"
    one = pruned[0]
    after = one.data.metrics["epoch"]
    assert one.data.tags["runner.pruned"] == f"after {after:g} of 4 epochs"
    assert door.run(["resume", f"run_id={one.info.run_id}"]) == 0
    gone_on = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db").get_run(one.info.run_id)
    assert (gone_on.info.status, gone_on.data.tags["runner.status"]) == ("FINISHED", "FINISHED")
    assert gone_on.data.metrics["epoch"] == 4
