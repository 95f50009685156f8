"""What the proofs decide before anything is trained, and their tables."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from runner import __main__ as door
from runner import schema
from runner.errors import ConfigError
from runner.plan import DataFacts
from runner.prepare import prepare
from runner.schema import Compression, Ingest, Precision
from runner.verbs import prove_equivalence, prove_evaluation
from runner.verbs.proof import Proof
from runner.verbs.proof_jobs import own_arguments, proved
from runner.verbs.proof_metrics import by_scikit_learn
from runner.verbs.prove import PROOFS, prove
from tests.composed import CONF
from tests.fakes import make_experiment


def compose(arguments):
    return door.request_of(arguments, ())


def refusal(function, *arguments):
    with pytest.raises(ConfigError) as refused:
        function(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_table_has_its_notes_and_its_verdict():
    proof = Proof("title", ("a", "verdict"), [("long", "equal"), ("b", "")], True, Path(), None, ["a note"])
    assert proof.lines() == ["── title", "a note", "a     verdict", "long  equal", "b", "verdict: holds"]


def test_prove_alone_lists_the_proofs():
    line = refusal(prove, [], compose, None)
    assert line.startswith("prove: nothing: there are proofs of equivalence, evaluation, determinism, resume")
    assert refusal(prove, ["equivalent"], compose, None).endswith("; type prove equivalence")


def test_a_proof_s_own_arguments_are_split_from_the_overrides():
    assert own_arguments(["model=cnn", "steps=7"], {"steps": 5}) == ({"steps": 7}, ["model=cnn"])
    assert own_arguments([], {"steps": 5}) == ({"steps": 5}, [])
    assert refusal(own_arguments, ["steps=0"], {"steps": 5}) == (
        "steps=0: must be a whole number, 1 or more; type steps=5"
    )
    assert refusal(own_arguments, ["repeats=1"], {"repeats": 2}, 2) == (
        "repeats=1: must be a whole number, 2 or more; type repeats=2"
    )


@pytest.mark.parametrize("name", PROOFS)
def test_a_dry_run_proves_nothing(name):
    line = refusal(PROOFS[name], ["dry_run=true"], compose, None)
    assert line == "dry_run=True: a proof needs trainings; type dry_run=false, or leave it out"


def test_a_cluster_is_refused_and_this_machine_is_not(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    line = refusal(proved, "equivalence", compose, [])
    assert line == (
        "scaling.address=10.0.0.1:6379: proofs run on workers of this machine; type scaling.address=local"
    )
    assert proved("equivalence", compose, ["scaling.address=local"]).run_dir.parent.parent.name == "proofs"


def test_a_misspelt_override_of_a_proof_is_one_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert refusal(compose, ["trainer.epoch=3"]).endswith("; type trainer.epochs=3")
    assert refusal(compose, ["model=mpl"]).endswith("; type model=mlp")


def test_a_config_folder_of_the_user_s_is_composed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("_target_: models.linear.Linear\nbias: false\n")
    for arguments in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"]):
        request = compose([*arguments, "model=mine"])
        assert request.experiment.model.target == {"_target_": "models.linear.Linear", "bias": False}
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("workers", "batch", "accumulation", "expected"),
    [(2, 32, 1, 64), (3, 5, 1, 16), (1, 1, 1, 4), (3, 3, 2, 16)],
)
def test_the_global_batch_is_today_s_to_a_multiple_of_4(workers, batch, accumulation, expected):
    settings = {"scaling.num_workers": workers, "trainer.batch_size": batch}
    experiment = make_experiment({**settings, "trainer.accumulation_steps": accumulation})
    assert prove_equivalence.sizes_of(experiment) == (expected, batch)
    rounded = expected != workers * batch * accumulation
    assert ("to a multiple of 4" in prove_equivalence.note_of_batch(experiment, expected)) == rounded


@pytest.mark.parametrize(
    ("rows", "batch", "expected"),
    [(1438, 64, 225), (1000, 4, 15), (100, 64, 100), (128, 64, 127), (192, 64, 191)],
)
def test_the_first_rows_end_with_a_short_batch_that_four_workers_cannot_share_evenly(rows, batch, expected):
    facts = prove_equivalence.first_rows(DataFacts(rows, 999, (1,), 1), batch, drop_last=False)
    assert facts.train_rows == expected
    assert facts.train_rows % batch != 0
    assert facts.val_rows == min(999, int(3.5 * batch) + 1)


def test_with_drop_last_a_whole_batch_stays():
    assert prove_equivalence.first_rows(DataFacts(64, 9, (1,), 1), 64, drop_last=True).train_rows == 64


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("trainer.precision", Precision.bf16, "type trainer.precision=float64"),
        ("trainer.precision", Precision.fp16, "type trainer.precision=float64"),
        ("horovod.compression", Compression.fp16, "type horovod.compression=none"),
        ("dataset.ingest", Ingest.ray_data, "type dataset.ingest=tensors"),
    ],
)
def test_what_rounds_or_has_other_batches_is_refused(key, value, instead):
    assert refusal(prove_equivalence.check, make_experiment({key: value})).endswith(instead)
    prove_equivalence.check(make_experiment())


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.BatchNorm1d(3), "is a BatchNorm1d, whose statistics"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "is a InstanceNorm1d, whose statistics"),
        (nn.Dropout(0.1), "is a Dropout, which draws at random"),
        (nn.LSTM(3, 3, num_layers=2, dropout=0.5), "is a LSTM, which draws at random"),
        (nn.MultiheadAttention(4, 2, dropout=0.5), "is a MultiheadAttention, which draws at random"),
    ],
)
def test_a_model_with_batch_statistics_or_dropout_is_refused(module, said):
    experiment = make_experiment()
    line = refusal(prove_equivalence.check_model, nn.Sequential(module), experiment)
    assert said in line
    assert "type model.dropout=0" not in line
    if "random" in said:
        experiment.model.target["dropout"] = 0.1
        line = refusal(prove_equivalence.check_model, nn.Sequential(module), experiment)
        assert line.endswith("; type model.dropout=0")


def test_a_model_whose_dropouts_are_off_passes():
    modules = [
        nn.Dropout(0.0),
        nn.LSTM(3, 3),
        nn.MultiheadAttention(4, 2),
        nn.LayerNorm(3),
        nn.GroupNorm(1, 3),
    ]
    prove_equivalence.check_model(nn.Sequential(*modules), make_experiment())


def test_the_difference_is_the_largest_and_nan_is_never_small():
    reference = {"a": torch.zeros(2), "b": torch.zeros(1, 1)}
    assert (
        prove_equivalence.difference({"a": torch.tensor([0.0, -3.0]), "b": torch.ones(1, 1)}, reference) == 3
    )
    broken = {"a": torch.tensor([0.0, math.nan]), "b": torch.ones(1, 1)}
    assert not prove_equivalence.difference(broken, reference) <= prove_equivalence.TOLERANCE


@pytest.mark.parametrize("optimizer", sorted(path.stem for path in (CONF / "optimizer").glob("*.yaml")))
def test_of_all_optimizers_only_lion_turns_rounding_noise_into_steps(optimizer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    request = compose([f"optimizer={optimizer}", "dataset.limit_rows=9", "trainer.precision=float64"])
    prepared = prepare(request)
    assert prove_equivalence.amplifies_rounding(prepared) == (optimizer == "lion")
    plain = prove_equivalence.with_plain_sgd(prepared)
    assert plain.experiment.optimizer == schema.Optimizer(
        0.1,
        target={
            "_target_": "torch.optim.SGD",
            "weight_decay": request.experiment.optimizer.target.get("weight_decay", 0.0),
        },
    )
    assert plain.plan.learning_rate.multiplier == 1


def test_a_lightning_module_has_no_predictions_to_compare():
    experiment = make_experiment()
    prove_evaluation.refuse_modules(experiment)
    experiment.model.target["_target_"] = "tests.lightning_modules.Digits"
    assert "measures by itself" in refusal(prove_evaluation.refuse_modules, experiment)


def test_as_many_rows_are_evaluated_as_their_predictions_have_room():
    images, texts = DataFacts(9, 400, (1, 8, 8), 10), DataFacts(9, 4000, (128,), 256)
    assert prove_evaluation.fitting(images, schema.Task.classification).val_rows == 400
    assert prove_evaluation.fitting(texts, schema.Task.language_modeling).val_rows == 2**28 // (8 * 128 * 256)


def experiment_of(task, **settings):
    return make_experiment({"dataset.task": task, **settings})


def test_scikit_learn_s_metrics_of_a_classification():
    targets, outputs = torch.tensor([0, 1, 1]), torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]]).double()
    facts = DataFacts(3, 3, (1,), 2)
    f1 = {"_target_": "torchmetrics.classification.MulticlassF1Score", "num_classes": None}
    settings = {"metrics": {"f1": f1, "own": {**f1, "top_k": 2}, "odd": {"_target_": "mine.Metric"}}}
    found = by_scikit_learn(experiment_of(schema.Task.classification, **settings), facts, targets, outputs)
    nats = [math.log(1 + math.exp(-2)), math.log(2), math.log(1 + math.exp(-1))]
    assert found == {
        "val/accuracy": pytest.approx(2 / 3),
        "val/loss": pytest.approx(sum(nats) / 3, rel=1e-12),
        "val/f1": pytest.approx(2 / 3),
    }
    weighted = experiment_of(schema.Task.classification, **{"loss.class_weights": [1.0, 3.0]})
    loss = by_scikit_learn(weighted, facts, targets, outputs)["val/loss"]
    assert loss == pytest.approx((nats[0] + 3 * nats[1] + 3 * nats[2]) / 7, rel=1e-12)
    smoothed = experiment_of(schema.Task.classification, **{"loss.label_smoothing": 0.1})
    assert set(by_scikit_learn(smoothed, facts, targets, outputs)) == {"val/accuracy"}


def test_scikit_learn_s_metrics_of_tokens_leave_out_what_is_not_counted():
    targets, outputs = torch.tensor([[0, -100], [1, 1]]), torch.zeros(2, 2, 4).double()
    found = by_scikit_learn(
        experiment_of(schema.Task.language_modeling), DataFacts(2, 2, (2,), 4), targets, outputs
    )
    assert found == {
        "val/accuracy": pytest.approx(1 / 3),
        "val/loss": pytest.approx(math.log(4)),
        "val/bits_per_token": pytest.approx(2),
        "val/perplexity": pytest.approx(4),
    }
