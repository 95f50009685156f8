"""The proofs on real Horovod workers: what holds, and that each planted mistake makes them fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from runner import __main__ as door
from runner import config
from runner.executors.live_workers import LiveWorkers
from runner.report.console import Screen
from runner.schema import Ingest
from runner.verbs import prove_determinism, prove_equivalence, prove_evaluation
from runner.verbs.proof import Proof
from tests.composed import CONF
from tests.end_to_end.planted import Planted

Prove = Callable[..., Proof]
OPTIMIZERS = sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml"))
TRANSFORMER = ["model=transformer", "dataset=text", "model.width=16", "model.depth=1", "model.dropout=0"]
SMALL = ["dataset.limit_rows=120", "trainer.batch_size=8"]
VERBS: dict[str, Any] = {
    "equivalence": prove_equivalence.prove,
    "evaluation": prove_evaluation.prove,
    "determinism": prove_determinism.prove,
}


@pytest.fixture
def prove(live: Callable[[int], LiveWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prove:
    """prove(verb, *overrides, mistake=…) on live workers that make that mistake."""
    monkeypatch.chdir(tmp_path)
    config.register_schema()

    def run(verb: str, *overrides: str, mistake: str = "none") -> Proof:
        return VERBS[verb](
            ["tracking=none", *overrides],
            lambda arguments: door.request_of(arguments, ()),
            Screen(),
            lambda size: nullcontext(Planted(live(size), mistake)),
        )

    return run


def splits(proof: Proof, verdict: str) -> list[str]:
    """Those of `prove equivalence` with this verdict."""
    return [row[1] for row in proof.rows if row[-1] == verdict]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_equivalence_holds_for_every_optimizer(
    prove: Prove, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lion follows the sign of rounding noise: its averaged gradients are compared."""
    monkeypatch.setattr(prove_equivalence, "INGESTS", (Ingest.tensors,))
    proof = prove("equivalence", f"optimizer={optimizer}", "trainer.clip_norm=1", *SMALL)
    assert proof.holds, proof.lines()
    assert len(splits(proof, "equal")) == 5
    assert any("plain SGD" in note for note in proof.notes) == (optimizer == "lion")


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.accumulation_steps=3", "optimizer.momentum=0.9", "optimizer.weight_decay=0.1", *SMALL],
        ["trainer.clip_value=0.001", "trainer.ema_decay=0.9", "loss.class_weights=balanced", *SMALL],
        [
            "model=cnn",
            "model.widths=[4,8]",
            "model.dropout=0",
            "scheduler=one_cycle",
            "trainer.clip_norm=0.01",
        ],
        ["model=resnet", "trainer.batch_size=4", "scheduler=plateau", "trainer.validate_every_steps=2"],
        [*TRANSFORMER, "trainer.batch_size=2", "optimizer=adamw", "trainer.clip_norm=0.1"],
        ["dataset=diabetes", "model=linear", "optimizer=adam", "lr_scaling=sqrt", "dataset.drop_last=true"],
        ["dataset=multilabel", "dataset.rows=200", "model=tabular", "model.dropout=0", "horovod.groups=2"],
    ],
    ids=lambda overrides: " ".join(overrides[:2]),
)
def test_equivalence_holds_for_models_and_training_options(prove: Prove, overrides: list[str]) -> None:
    proof = prove("equivalence", *overrides)
    assert proof.holds, proof.lines()
    assert len(splits(proof, "equal")) == 10  # of two ingests
    assert splits(proof, "reference") == [proof.rows[0][1]] * 2
    assert splits(proof, "not applicable") == ["no such proof"]  # ray_data


@pytest.mark.parametrize(
    ("mistake", "override", "wrong"),
    [
        ("padding", "seed=0", {"2 × 8", "2 × 4 × 2 accumulated", "4 × 4"}),
        ("truncation", "seed=0", {"2 × 8", "2 × 4 × 2 accumulated", "4 × 4"}),
        ("summed accumulation", "seed=0", {"1 × 4 × 4 accumulated", "2 × 4 × 2 accumulated"}),
        (
            "clipped before the average",
            "trainer.clip_norm=0.01",
            {"1 × 4 × 4 accumulated", "2 × 8", "2 × 4 × 2 accumulated", "4 × 4"},
        ),
        (
            "phantom step",
            "optimizer.weight_decay=0.1",
            {"1 × 16", "1 × 4 × 4 accumulated", "2 × 8", "2 × 4 × 2 accumulated", "4 × 4"},
        ),
        (
            "phantom step",
            "optimizer=adam",
            {"1 × 16", "1 × 4 × 4 accumulated", "2 × 8", "2 × 4 × 2 accumulated", "4 × 4"},
        ),
    ],
)
def test_a_planted_mistake_makes_equivalence_fail_in_the_splits_that_have_it(
    prove: Prove, mistake: str, override: str, wrong: set[str]
) -> None:
    proof = prove("equivalence", override, *SMALL, mistake=mistake)
    assert not proof.holds
    assert sorted(splits(proof, "NOT equal")) == sorted([*wrong, *wrong])
    assert (
        set(splits(proof, "equal"))
        == {"1 × 16", "1 × 4 × 4 accumulated", "2 × 8", "2 × 4 × 2 accumulated", "4 × 4"} - wrong
    )


def test_a_mistake_that_ends_the_training_is_a_failed_proof_and_the_next_one_holds(prove: Prove) -> None:
    proof = prove("equivalence", *SMALL, mistake="padding that the loop notices")
    assert not proof.holds
    (failed,) = [row[-1] for row in proof.rows if row[-1].startswith("FAILED")]
    assert "an epoch took 58 rows of 57" in failed
    assert prove("equivalence", "model=linear", *SMALL).holds


@pytest.mark.parametrize(
    ("overrides", "measured"),
    [
        (["metrics=classification", "loss.class_weights=balanced", "trainer.ema_decay=0.9"], 5),
        (["dataset=multilabel", "dataset.rows=300", "model=linear", "metrics=multilabel"], 5),
        (["dataset=diabetes", "model=linear", "metrics=regression"], 5),
        (["model=cnn", "model.widths=[4]", "dataset.limit_rows=100"], 2),
        ([*TRANSFORMER, "trainer.batch_size=2", "dataset.limit_rows=20"], 4),
        (
            ["dataset=linear", "model=linear", "dataset.limit_rows=2", "metrics=auto"],
            2,
        ),  # of 3 ranks one has no row
        (["dataset=synthetic", "dataset.rows=200", "dataset.ingest=ray_data"], 2),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else str(value),
)
def test_evaluation_counts_each_row_once_and_measures_as_scikit_learn(
    prove: Prove, overrides: list[str], measured: int
) -> None:
    proof = prove("evaluation", *overrides)
    assert proof.holds, proof.lines()
    assert [row[0] for row in proof.rows if row[1] == "rows"] == ["1", "2", "3"]
    assert len(proof.rows) == 3 * (1 + measured)
    for row in proof.rows:
        of_its_own = row[1] in ("rows", "val/calibration_error", "val/spearman")
        assert of_its_own or float(row[3]) == pytest.approx(float(row[2]), rel=1e-6), row


@pytest.mark.parametrize(
    ("mistake", "wrong"),
    [
        ("shifted evaluation", {("2", "rows"), ("3", "rows")}),
        ("local metrics", {("2", "val/f1"), ("3", "val/f1"), ("2", "val/auroc"), ("3", "val/auroc")}),
    ],
)
def test_a_planted_mistake_makes_evaluation_fail(
    prove: Prove, mistake: str, wrong: set[tuple[str, str]]
) -> None:
    proof = prove("evaluation", "metrics=classification", mistake=mistake)
    assert not proof.holds
    assert wrong <= {row[:2] for row in proof.rows if row[-1] == "NOT equal"}
    assert all(row[-1] == "equal" for row in proof.rows if row[0] == "1")


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=mlp"],
        ["model=cnn", "model.widths=[4]"],  # with dropout, as the transformer
        [*TRANSFORMER[:4], "trainer.batch_size=2", "dataset.limit_rows=20"],
        ["dataset=synthetic", "dataset.rows=300", "dataset.ingest=ray_data"],
    ],
    ids=lambda overrides: " ".join(overrides[:2]),
)
def test_determinism_holds_on_2_3_and_4_workers(prove: Prove, overrides: list[str]) -> None:
    proof = prove("determinism", "dataset.limit_rows=200", *overrides, "trainer.epochs=2")
    assert proof.holds, proof.lines()
    assert [(row[0], row[-1]) for row in proof.rows] == [
        (size, verdict) for size in "234" for verdict in ("reference", "equal")
    ]
    assert len({row[3] for row in proof.rows}) == 3  # a batch of another size is another training


def test_a_proof_that_holds_ends_with_0_and_is_a_run_of_its_own(
    live: Callable[[int], LiveWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in (prove_evaluation, prove_determinism):
        monkeypatch.setattr(module, "groups", lambda request: lambda size: nullcontext(live(size)))
    for name in ("evaluation", "determinism"):
        assert door.run(["prove", name, "model=linear", "trainer.epochs=1", *SMALL]) == 0
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("runner").experiment_id])
    assert [(run.info.run_name, run.info.status) for run in runs] == [
        ("prove determinism", "FINISHED"),
        ("prove evaluation", "FINISHED"),
    ]  # the trainings have none
    assert {run.data.tags["runner.holds"] for run in runs} == {"true"}


def test_an_order_without_a_seed_makes_determinism_fail(prove: Prove) -> None:
    proof = prove("determinism", "repeats=3", "trainer.epochs=1", *SMALL, mistake="unseeded order")
    assert not proof.holds
    assert [row[-1] for row in proof.rows] == ["reference", "NOT equal", "NOT equal"] * 3
