"""Metrics of torchmetrics over 1 to 4 ranks with any share of the rows, against scikit-learn and scipy over all rows."""

import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn import metrics as sk

from runner.communicator import SingleProcess
from runner.errors import ConfigError, TrainingError
from runner.metrics import Metrics, build_metrics, numbers
from runner.plan import DataFacts
from runner.schema import Task
from tests.fakes import on_ranks

ROWS, CLASSES, LABELS, BATCH = 23, 3, 4, 5
# Rows a rank: all on one, even, uneven, none on the first, on a middle one, on the last, on most.
SHARES = [(23,), (11, 12), (0, 23), (23, 0), (4, 0, 19), (6, 6, 6, 5), (0, 9, 0, 14), (0, 0, 1, 22)]
DRAWS = np.random.default_rng(5)
LOGITS = DRAWS.standard_normal((ROWS, CLASSES))
CHOSEN = DRAWS.permutation(np.arange(ROWS) % CLASSES)
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
PREDICTED = LOGITS.argmax(axis=1)
LABEL_LOGITS = DRAWS.standard_normal((ROWS, LABELS))
LABELLED = DRAWS.permutation(np.arange(ROWS * LABELS) % 2).reshape(ROWS, LABELS)
NUMBERS = DRAWS.standard_normal((ROWS, 2)) + 100.0  # large: a sum of squares shows float32's rounding
TARGETS = NUMBERS + 0.5 * DRAWS.standard_normal((ROWS, 2))
TOKEN_LOGITS = DRAWS.standard_normal((ROWS, 3, CLASSES))
TOKENS = np.where(DRAWS.random((ROWS, 3)) < 0.4, -100, np.arange(3 * ROWS).reshape(ROWS, 3) % CLASSES)
TOKENS[4:] = np.where(np.arange(4, ROWS)[:, None] < 9, -100, TOKENS[4:])  # a rank of rows 4 … 8 counts none
COLUMNS = {
    "classes": (Task.classification, LOGITS, CHOSEN, CLASSES),
    "labels": (Task.multilabel, LABEL_LOGITS, LABELLED.astype(float), LABELS),
    "number": (Task.regression, NUMBERS[:, :1], TARGETS[:, :1], 1),
    "numbers": (Task.regression, NUMBERS, TARGETS, 2),
    "tokens": (Task.language_modeling, TOKEN_LOGITS, TOKENS, CLASSES),
}


def of_class(name, **arguments):
    return {"_target_": f"torchmetrics.classification.{name}", **arguments}


def of_number(name, **arguments):
    return {"_target_": f"torchmetrics.regression.{name}", **arguments}


def computed(columns, node, share, repeats=1):
    """Each rank's {"m": value} or {"m_0": …}; the metric is built on each rank, and used `repeats` times."""
    task, outputs, targets, features = COLUMNS[columns]
    data = DataFacts(ROWS, ROWS, (4,), features)
    every_rank = [build_metrics({"m": node}, data, task) for _ in share]
    ends = np.cumsum(share)

    def rank(communicator):
        metrics = every_rank[communicator.rank]
        end = ends[communicator.rank]
        for _ in range(repeats):
            for start in range(end - share[communicator.rank], end, BATCH):
                rows = slice(start, min(end, start + BATCH))
                metrics.update(torch.from_numpy(outputs[rows]), torch.from_numpy(targets[rows]))
            found = metrics.compute(communicator)
        return found

    return on_ranks(len(share), rank)


COUNTED = TOKENS != -100
EXACT = {  # (columns, node, the value over all rows)
    "sums": ("classes", of_class("MulticlassF1Score", num_classes=None),
             sk.f1_score(CHOSEN, PREDICTED, average="macro")),
    "sums a class": ("classes", of_class("MulticlassRecall", num_classes=None, average=None),
                     sk.recall_score(CHOSEN, PREDICTED, average=None)),
    "a matrix": ("classes", of_class("MulticlassConfusionMatrix", num_classes=None),
                 sk.confusion_matrix(CHOSEN, PREDICTED)),
    "lists": ("classes", of_class("MulticlassAUROC", num_classes=None),
              sk.roc_auc_score(CHOSEN, PROBABILITIES, multi_class="ovr", average="macro")),
    "one list": ("classes", of_class("MulticlassCalibrationError", num_classes=None, n_bins=1),
                 abs(PROBABILITIES.max(axis=1).mean() - (PREDICTED == CHOSEN).mean())),
    "a float sum": ("classes", of_class("MulticlassHingeLoss", num_classes=None),
                    np.maximum(0, 1 - PROBABILITIES[range(ROWS), CHOSEN]
                               + np.where(np.eye(CLASSES)[CHOSEN] > 0, -np.inf, PROBABILITIES).max(axis=1)).mean()),
    "labels": ("labels", of_class("MultilabelAUROC", num_labels=None),
               sk.roc_auc_score(LABELLED, LABEL_LOGITS, average="macro")),
    "labels f1": ("labels", of_class("MultilabelF1Score", num_labels=None),
                  sk.f1_score(LABELLED, LABEL_LOGITS > 0, average="macro")),
    "r2": ("number", of_number("R2Score"), sk.r2_score(TARGETS[:, 0], NUMBERS[:, 0])),
    "r2 of two": ("numbers", of_number("R2Score"), sk.r2_score(TARGETS, NUMBERS)),
    "rmse": ("numbers", of_number("MeanSquaredError", squared=False),
             sk.root_mean_squared_error(TARGETS.ravel(), NUMBERS.ravel())),
    "spearman": ("number", of_number("SpearmanCorrCoef", num_outputs=None),
                 scipy.stats.spearmanr(NUMBERS[:, 0], TARGETS[:, 0]).statistic),
    "spearman of two": ("numbers", of_number("SpearmanCorrCoef", num_outputs=None),
                        [scipy.stats.spearmanr(NUMBERS[:, k], TARGETS[:, k]).statistic for k in (0, 1)]),
    # Its states have no reduction: torchmetrics merges means and variances by itself.
    "pearson": ("number", of_number("PearsonCorrCoef"), np.corrcoef(NUMBERS[:, 0], TARGETS[:, 0])[0, 1]),
    "tokens": ("tokens", of_class("MulticlassAUROC", num_classes=None, average="macro"),
               sk.roc_auc_score(TOKENS[COUNTED], np.exp(TOKEN_LOGITS[COUNTED])
                                / np.exp(TOKEN_LOGITS[COUNTED]).sum(axis=1, keepdims=True), multi_class="ovr")),
}  # fmt: skip


def flattened(value):
    """numpy's own flattening: {"m": value}, {"m_0": …} or {"m_0_0": …}."""
    return {"_".join(["m", *map(str, index)]): number for index, number in np.ndenumerate(np.asarray(value))}


@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("case", EXACT)
def test_a_metric_is_that_of_all_rows_on_every_rank(case, share):
    columns, node, expected = EXACT[case]
    for found in computed(columns, node, share):
        # Torchmetrics averages classes in float32, and adds 1e-6 to what Spearman's correlation is divided by.
        assert found == pytest.approx(flattened(expected), rel=0, abs=5e-7)


@pytest.mark.parametrize("case", ["r2", "r2 of two", "rmse", "pearson"])
@pytest.mark.parametrize("share", SHARES, ids=str)
def test_sums_are_kept_in_float64(case, share):
    columns, node, expected = EXACT[case]
    for found in computed(columns, node, share):
        assert found == pytest.approx(flattened(expected), rel=1e-12)


@pytest.mark.parametrize("case", ["sums", "lists", "pearson", "rmse"])
def test_each_evaluation_starts_anew(case):
    columns, node, _ = EXACT[case]
    assert computed(columns, node, (4, 0, 19), repeats=3) == computed(columns, node, (4, 0, 19))


def test_the_wrapped_metric_is_synchronised_too():
    node = {
        "_target_": "torchmetrics.wrappers.ClasswiseWrapper",
        "metric": of_class("MulticlassRecall", num_classes=None, average=None),
        "labels": ["ant", "bee", "cat"],
        "prefix": "of_",
    }
    names = ["m_of_ant", "m_of_bee", "m_of_cat"]
    expected = sk.recall_score(CHOSEN, PREDICTED, average=None)
    for found in computed("classes", node, (4, 0, 19)):
        assert found == pytest.approx(dict(zip(names, expected, strict=True)))


def test_several_metrics_keep_their_order():
    nodes = {name: of_class(name, num_classes=None) for name in ("MulticlassAUROC", "MulticlassF1Score")}

    def rank(communicator):
        metrics = build_metrics(nodes, DataFacts(ROWS, ROWS, (4,), CLASSES), Task.classification)
        metrics.update(torch.from_numpy(LOGITS), torch.from_numpy(CHOSEN))
        return metrics.compute(communicator)

    for found in on_ranks(3, rank):  # each row three times changes neither
        assert list(found) == list(nodes)
        assert found["MulticlassF1Score"] == pytest.approx(EXACT["sums"][2])
        assert found["MulticlassAUROC"] == pytest.approx(EXACT["lists"][2])


def test_logits_between_0_and_1_are_not_taken_for_probabilities():
    metrics = build_metrics(
        {"gap": EXACT["one list"][1]}, DataFacts(1, 1, (4,), CLASSES), Task.classification
    )
    metrics.update(torch.from_numpy(PROBABILITIES), torch.from_numpy(CHOSEN))
    chances = np.exp(PROBABILITIES) / np.exp(PROBABILITIES).sum(axis=1, keepdims=True)
    gap = abs(chances.max(axis=1).mean() - (PREDICTED == CHOSEN).mean())
    assert metrics.compute(SingleProcess()) == {"gap": pytest.approx(gap, abs=1e-7)}
    metrics = build_metrics({"f1": EXACT["labels f1"][1]}, DataFacts(1, 1, (4,), LABELS), Task.multilabel)
    metrics.update(torch.full((1, LABELS), 0.1), torch.ones(1, LABELS))  # a logit above 0 is a label
    assert metrics.compute(SingleProcess()) == {"f1": 1.0}


def test_a_metric_without_any_row_is_not_a_number():
    data = DataFacts(ROWS, ROWS, (4,), CLASSES)
    metrics = build_metrics({"auroc": EXACT["tokens"][1]}, data, Task.language_modeling)
    metrics.update(torch.zeros(2, 3, CLASSES), torch.full((2, 3), -100))
    assert math.isnan(metrics.compute(SingleProcess())["auroc"])


def test_a_value_of_several_numbers_is_flattened():
    value = {"a": torch.tensor([1.0, 2.0]), "b": (torch.tensor(3), [4.0, torch.tensor([[5.0]])])}
    expected = {"m_a_0": 1.0, "m_a_1": 2.0, "m_b_0": 3.0, "m_b_1_0": 4.0, "m_b_1_1_0_0": 5.0}
    assert numbers("m", value) == expected
    assert numbers("m", torch.tensor(0.5)) == {"m": 0.5}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (3, "metrics.m=3: a _target_ is needed; type metrics.m._target_=torchmetrics.classification.MulticlassAUROC"),
        (of_class("MulticlassF1Score", num_classes=0),
         ("metrics.m=torchmetrics.classification.MulticlassF1Score: ValueError: "
          "Expected argument `num_classes` to be an integer larger than 1, but got 0")),
        ({"_target_": "torch.nn.Identity"},
         "metrics.m._target_=torch.nn.Identity: gives a Identity, not a torchmetrics.Metric"),
        ({"_target_": "torchmetrics.image.VisualInformationFidelity", "reduction": "none"},
         ("metrics.m._target_=torchmetrics.image.VisualInformationFidelity: "
          "its list vif_score has no dist_reduce_fx: ranks cannot join it")),
        (of_class("BinaryAUROC"),
         ("metrics.m._target_=torchmetrics.classification.BinaryAUROC: a classification gives a probability a class; "
          "type metrics.m._target_=torchmetrics.classification.MulticlassAUROC")),
    ],
)  # fmt: skip
def test_what_is_no_metric_is_refused_in_one_line(node, message):
    with pytest.raises(ConfigError) as raised:
        build_metrics({"m": node}, DataFacts(1, 1, (1,), 3), Task.classification)
    assert str(raised.value) == message


def test_a_metric_that_fails_is_named_with_the_shapes():
    nodes = {"f1": of_class("MulticlassF1Score", num_classes=2)}
    metrics = build_metrics(nodes, DataFacts(1, 1, (4,), CLASSES), Task.classification)
    with pytest.raises(TrainingError) as raised:
        metrics.update(torch.from_numpy(LOGITS), torch.from_numpy(CHOSEN))
    assert str(raised.value) == (
        "metrics.f1: outputs (23, 3) and targets (23,): ValueError: If `preds` have one dimension more than `target`, "
        "`preds.shape[1]` should be equal to number of classes."
    )


def test_no_metrics_cost_no_collective_and_no_import():
    assert Metrics({}, Task.regression).compute(None) == {}
    code = "import sys, runner.objective; assert not {'torchmetrics', 'sklearn', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
